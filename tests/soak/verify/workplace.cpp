// SPDX-License-Identifier: Apache-2.0
#include "workplace.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

using test::Failure;

namespace {

constexpr std::size_t kMostStreams = 8;

std::string hexadecimal(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

// "17..31, 64, 90..127 and more"
std::string ranges_of(const std::vector<std::size_t>& indices) {
  constexpr std::size_t kMost = 12;
  std::string text;
  std::size_t shown = 0;
  for (std::size_t i = 0; i < indices.size() && shown < kMost; ++shown) {
    std::size_t last = i;
    while (last + 1 < indices.size() && indices[last + 1] == indices[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(indices[i]) + (last > i ? ".." + std::to_string(indices[last]) : "");
    i = last + 1;
    if (shown + 1 == kMost && i < indices.size()) text += " and more";
  }
  return text;
}

}  // namespace

// Two of three threads have one stream, as most programs do: those may be served in any context of the executor.
Workplace::Workplace(Process& the_process, std::uint64_t seed) : process(the_process), random(seed) {
  CU(cuCtxSetCurrent(process.context));
  CU(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
  const std::size_t count = random.below(3) != 0 ? 1 : random.between(2, 4);
  if (random.below(3) == 0) streams_.push_back({nullptr, true});
  while (streams_.size() < count) add_stream();
}

Workplace::~Workplace() {
  if (process.options.leaves_at_once) return;
  for (const Stream& stream : streams_) {
    if (stream.handle != nullptr) cuStreamDestroy(stream.handle);
  }
  cuEventDestroy(event_);
}

void Workplace::add_stream() {
  Stream stream;
  stream.is_blocking = random.below(2) == 0;
  const unsigned flags = stream.is_blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  if (random.one_in(6))
    CU(cuStreamCreateWithPriority(&stream.handle, flags, -static_cast<int>(random.below(3))));
  else
    CU(cuStreamCreate(&stream.handle, flags));
  history.note("cuStreamCreate", {{"stream", reinterpret_cast<std::uint64_t>(stream.handle)}, {"flags", flags}});
  streams_.push_back(stream);
}

void Workplace::change_streams() {
  if (streams_.size() > 1 && random.below(2) == 0) {
    const std::size_t index = random.below(streams_.size());
    if (streams_[index].handle == nullptr) return;
    history.note("cuStreamDestroy", {{"stream", reinterpret_cast<std::uint64_t>(streams_[index].handle)}});
    CU(cuStreamDestroy(streams_[index].handle));
    streams_.erase(streams_.begin() + static_cast<std::ptrdiff_t>(index));
  } else if (streams_.size() == 1 && streams_[0].handle != nullptr) {
    CU(cuStreamDestroy(streams_[0].handle));
    streams_.clear();
    add_stream();
  } else if (streams_.size() < kMostStreams) {
    add_stream();
  }
}

void Workplace::verified(Kind kind) {
  process.tally.sequences[static_cast<std::size_t>(kind)].fetch_add(1, std::memory_order_relaxed);
  process.tally.operations.fetch_add(operations_, std::memory_order_relaxed);
  operations_ = 0;
}

void Workplace::wait_for(const Stream& stream) {
  did();
  switch (random.below(8)) {
    case 0: {
      history.note("cuCtxSynchronize");
      const std::shared_lock nobody_captures(process.capturing);
      CU(cuCtxSynchronize());
      return;
    }
    case 1:
    case 2: {
      const bool polls = random.below(2) == 0;
      history.note(polls ? "cuEventRecord, cuEventQuery" : "cuEventRecord, cuEventSynchronize");
      CU(cuEventRecord(event_, stream.handle));
      if (!polls) {
        CU(cuEventSynchronize(event_));
        return;
      }
      for (CUresult result = CUDA_ERROR_NOT_READY; result == CUDA_ERROR_NOT_READY; sched_yield()) {
        result = cuEventQuery(event_);
        if (result != CUDA_ERROR_NOT_READY) CU(result);
      }
      return;
    }
    default:
      history.note("cuStreamSynchronize", {{"stream", reinterpret_cast<std::uint64_t>(stream.handle)}});
      CU(cuStreamSynchronize(stream.handle));
  }
}

void Workplace::keep_pace(const Stream& stream) {
  const Pace::Step step = pace.step(random);
  if (step.waits) wait_for(stream);
  if (step.pause_us != 0) {
    history.note("usleep", {{"us", step.pause_us}});
    usleep(step.pause_us);
  }
}

void Workplace::expect(const char* what, std::span<const Word> found, std::span<const Word> wanted) {
  if (std::equal(found.begin(), found.end(), wanted.begin(), wanted.end())) return;
  std::vector<std::size_t> wrong;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (found[i] != wanted[i]) wrong.push_back(i);
  }
  std::string text = std::string(what) + ": " + std::to_string(wrong.size()) + " of " + std::to_string(wanted.size()) + " words are wrong (" +
                     ranges_of(wrong) + "):";
  for (std::size_t i = 0; i < std::min<std::size_t>(wrong.size(), 4); ++i) {
    text += " word " + std::to_string(wrong[i]) + " is " + hexadecimal(found[wrong[i]]) + " and not " + hexadecimal(wanted[wrong[i]]) + ";";
  }
  throw Failure(text);
}

void Workplace::expect(const char* what, Sum found, Sum wanted) {
  if (found != wanted) throw Failure(std::string(what) + " is " + hexadecimal(found) + " and not " + hexadecimal(wanted));
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) { CU(cuMemAlloc(&address_, bytes)); }

}  // namespace mpsshim::soak
