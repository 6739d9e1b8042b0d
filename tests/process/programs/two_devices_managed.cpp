// SPDX-License-Identifier: Apache-2.0
// Managed memory of either device that kernels of both and the host change in turns, against a model.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "tests/process/programs/two_devices_managed.hpp"

namespace mpsshim::test {

namespace {

// NOLINTNEXTLINE(performance-no-int-to-ptr): what managed memory is
unsigned* words_at(CUdeviceptr memory) { return reinterpret_cast<unsigned*>(memory); }

CUdeviceptr managed_by(const Side& side, std::size_t bytes = kBytes) {
  side.use();
  CUdeviceptr memory = 0;
  CU(cuMemAllocManaged(&memory, bytes, CU_MEM_ATTACH_GLOBAL));
  std::memset(words_at(memory), 0, bytes);
  return memory;
}

// The second's later work comes behind the first's.
void order(const Side& first, const Side& second) {
  CUevent event = nullptr;
  first.use();
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CU(cuEventRecord(event, first.stream));
  second.use();
  CU(cuStreamWaitEvent(second.stream, event, 0));
  CU(cuEventDestroy(event));
}

}  // namespace

ManagedForBoth::ManagedForBoth(Sides& sides) : sides_(sides) {
  for (std::size_t i = 0; i < 2; ++i) {
    buffers_[i].memory = managed_by(sides[i]);
    buffers_[i].model.assign(kWords, 0);
  }
}

unsigned ManagedForBoth::draw(unsigned below) { return static_cast<unsigned>(random_() % below); }

void ManagedForBoth::add_by_device(Buffer& buffer) {
  const unsigned by = draw(2), value = draw(1000);
  if (last_ != by && draw(2) == 0) {
    order(sides_[last_], sides_[by]);  // not waited for here
  } else {
    finish();
  }
  sides_[by].use();
  sides_[by].launch_add(buffer.memory, value);
  for (unsigned& word : buffer.model) word += value;
  last_ = by;
}

void ManagedForBoth::finish() {
  for (const Side& side : sides_) {
    side.use();
    CU(cuStreamSynchronize(side.stream));
  }
}

void ManagedForBoth::change_by_host(Buffer& buffer) {
  finish();
  const unsigned first = draw(kWords), count = std::min(1 + draw(3000), kWords - first), value = draw(1000);
  for (unsigned i = first; i < first + count; ++i) {
    words_at(buffer.memory)[i] += value;
    buffer.model[i] += value;
  }
}

void ManagedForBoth::copy_between() {
  finish();
  const unsigned from = draw(2), first = draw(kWords), count = kWords - first;
  const std::size_t offset = first * sizeof(unsigned);
  last_ = draw(2);
  const Side& by = sides_[last_];
  by.use();
  CU(cuMemcpyDtoDAsync(buffers_[1 - from].memory + offset, buffers_[from].memory + offset, count * sizeof(unsigned), by.stream));
  std::copy_n(buffers_[from].model.begin() + first, count, buffers_[1 - from].model.begin() + first);
}

void ManagedForBoth::prefetch(const Buffer& buffer) {
  const Side& by = sides_[draw(2)];
  by.use();
  CUmemLocation place{};
  place.type = draw(2) == 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  place.id = place.type == CU_MEM_LOCATION_TYPE_HOST ? 0 : by.device;
  CU(cuMemPrefetchAsync_v2(buffer.memory, kBytes, place, 0, by.stream));
}

void ManagedForBoth::check() {
  finish();
  for (const Buffer& buffer : buffers_) {
    for (unsigned i = draw(7); i < kWords; i += 7) {
      const unsigned found = words_at(buffer.memory)[i];
      if (found != buffer.model[i])
        throw Failure("managed memory: word " + std::to_string(i) + " is " + std::to_string(found) + ", not " + std::to_string(buffer.model[i]));
    }
  }
}

void ManagedForBoth::work(unsigned steps) {
  for (unsigned i = 0; i < steps; ++i) {
    Buffer& buffer = buffers_[draw(2)];
    switch (draw(8)) {
      case 0:
      case 1:
      case 2: add_by_device(buffer); break;
      case 3:
      case 4: change_by_host(buffer); break;
      case 5: copy_between(); break;
      case 6: prefetch(buffer); break;
      default: check();
    }
  }
  check();
}

void managed_in_turns(Sides& sides) {
  ManagedForBoth both(sides);
  both.work(600);
}

// Each thread has its device and its part of memory of either's; what the other does to the rest is no affair of it.
void managed_threads(Sides& sides) {
  const CUdeviceptr memory[] = {managed_by(sides[0], 2 * kBytes), managed_by(sides[1], 2 * kBytes)};
  std::atomic<bool> is_right{true};
  std::string what[2];
  const auto work = [&](unsigned own) {
    try {
      const Side& side = sides[own];
      side.use();
      unsigned value = 0;
      for (unsigned round = 0; round < 60; ++round) {
        for (const CUdeviceptr each : memory) {
          side.launch_add(each + own * kBytes, 1);
          CU(cuStreamSynchronize(side.stream));
          unsigned* const words = words_at(each) + own * kWords;
          for (unsigned i = own; i < kWords; i += 997) require(words[i] == value + 1, "what a thread's device has made of its part");
          for (unsigned i = 0; i < kWords; ++i) words[i] += 1;
        }
        value += 2;
      }
    } catch (const std::exception& failure) {
      what[own] = failure.what();
      is_right = false;
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  require(is_right, (what[0] + " " + what[1]).c_str());
}

// Given up behind the other device's work: that comes first.
void managed_given_up(Sides& sides) {
  for (unsigned round = 0; round < 6; ++round) {
    const Side &owner = sides[round % 2], &other = sides[1 - round % 2];
    const CUdeviceptr memory = managed_by(owner);
    other.use();
    other.launch_fill(memory, 3);
    CU(cuMemFree(memory));
    const CUdeviceptr next = managed_by(owner);
    std::fill_n(words_at(next), kWords, 7U);
    for (const Side& side : sides) {
      side.use();
      CU(cuCtxSynchronize());
    }
    require(std::count(words_at(next), words_at(next) + kWords, 7U) == kWords, "memory that was given up is written to");
    CU(cuMemFree(next));
  }
}

// The device that has a fault loses what it has; the other's memory, which it has used, stays.
void managed_fault(Sides& sides) {
  const CUdeviceptr kept = managed_by(sides[0]), lost = managed_by(sides[1]);
  for (const CUdeviceptr each : {kept, lost}) {
    sides[0].use();
    sides[0].launch_fill(each, 3);
    CU(cuStreamSynchronize(sides[0].stream));
    sides[1].use();
    sides[1].launch_add(each, 1);
    CU(cuStreamSynchronize(sides[1].stream));
  }
  for (unsigned i = 0; i < 5; ++i) sides[1].launch_fill(lost, 3);
  sides[1].launch_fill(0x10, 1);
  sides[1].launch_add(kept, 1);  // does not come to it: the touch waits for it, until that device's session is over
  words_at(kept)[7] = 3 * 7 + 1;
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(sides[1].stream));
  (void)std::memcmp(words_at(lost), words_at(kept), kBytes);  // comes back
  for (unsigned i = 0; i < kWords; ++i) require(words_at(kept)[i] == 3 * i + 1, "managed memory of the device that had no fault");
  words_at(kept)[0] = 41;
  sides[0].use();
  sides[0].launch_add(kept, 1);
  CU(cuStreamSynchronize(sides[0].stream));
  require(words_at(kept)[0] == 42 && words_at(kept)[1] == 5, "managed memory of the device that had no fault, later");
  CU(cuMemFree(kept));
}

}  // namespace mpsshim::test
