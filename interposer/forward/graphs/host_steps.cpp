// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/host_steps.hpp"

#include <cstring>
#include <mutex>
#include <utility>

#include "interposer/forward/host_functions.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

// One side of a copy as this process sees it.
struct Box {
  std::byte* first = nullptr;
  std::size_t pitch = 0;
  std::size_t slice = 0;
};

Box packed(std::uint64_t address, const proto::GraphCopy& copy) {
  return {reinterpret_cast<std::byte*>(address), copy.width_bytes, copy.width_bytes * copy.height};  // NOLINT(performance-no-int-to-ptr)
}
Box source_of(const proto::GraphCopy& copy) {
  auto* first = reinterpret_cast<std::byte*>(copy.source);  // NOLINT(performance-no-int-to-ptr)
  return {first, copy.source_pitch_bytes, copy.source_pitch_bytes * copy.source_rows};
}
Box destination_of(const proto::GraphCopy& copy) {
  auto* first = reinterpret_cast<std::byte*>(copy.destination);  // NOLINT(performance-no-int-to-ptr)
  return {first, copy.destination_pitch_bytes, copy.destination_pitch_bytes * copy.destination_rows};
}

void copy_rows(const Box& to, const Box& from, const proto::GraphCopy& copy) {
  for (std::size_t z = 0; z < copy.depth; ++z) {
    for (std::size_t y = 0; y < copy.height; ++y) {
      std::memmove(to.first + z * to.slice + y * to.pitch, from.first + z * from.slice + y * from.pitch, copy.width_bytes);
    }
  }
}

void run(const HostStep& step) {
  if (const auto* host = std::get_if<HostWork>(step.work.get())) return host->params.fn(host->params.userData);
  const auto& copy = std::get<CopyWork>(*step.work);
  if (step.staging == nullptr) return copy_rows(destination_of(copy.copy), source_of(copy.copy), copy.copy);
  const Box staged = packed(step.staging->address(), copy.copy);
  if (copy.is_from_pageable())
    copy_rows(staged, source_of(copy.copy), copy.copy);
  else
    copy_rows(destination_of(copy.copy), staged, copy.copy);
}

void run_all(void* data) {
  const std::unique_ptr<std::vector<HostStep>> steps(static_cast<std::vector<HostStep>*>(data));
  for (const HostStep& step : *steps) run(step);
}

}  // namespace

bool is_on_host(const CopyWork& copy) {
  const auto is_host = [](Space space) { return space != Space::device; };
  return is_host(copy.copy.source_space) && is_host(copy.copy.destination_space) && (copy.is_from_pageable() || copy.is_to_pageable());
}
bool is_staged(const CopyWork& copy) { return copy.is_from_pageable() != copy.is_to_pageable() && !is_on_host(copy); }

namespace {

struct Ended {
  Mutex mutex;
  std::vector<void*> memory GUARDED_BY(mutex);
};
Ended& ended() {
  return PerSession<Ended>::get([] { return new Ended(); });
}

}  // namespace

GraphStaging::~GraphStaging() {
  if (memory_ == nullptr) return;
  const std::lock_guard lock(ended().mutex);
  ended().memory.push_back(memory_);
}

void GraphStaging::reap() {
  std::vector<void*> memory;
  {
    const std::lock_guard lock(ended().mutex);
    memory.swap(ended().memory);
  }
  for (void* one : memory) (void)PinnedMemory::instance().release(one);
}

CUresult GraphStaging::allocate(std::size_t bytes) {
  bytes_ = bytes;
  return PinnedMemory::instance().allocate(bytes, 0, nullptr, memory_);
}

WorkRef staged_copy(const CopyWork& copy, const GraphStaging& staging) {
  CopyWork device = copy;
  if (copy.is_to_pageable()) {
    device.copy.destination = staging.address();
    device.copy.destination_pitch_bytes = copy.copy.width_bytes;
    device.copy.destination_rows = copy.copy.height;
    device.copy.destination_space = Space::registered_host;
  } else {
    device.copy.source = staging.address();
    device.copy.source_pitch_bytes = copy.copy.width_bytes;
    device.copy.source_rows = copy.copy.height;
    device.copy.source_space = Space::registered_host;
  }
  return std::make_shared<const NodeWork>(std::move(device));
}

CUresult post_host_steps(Stream& stream, std::vector<HostStep> steps) {
  auto data = std::make_unique<std::vector<HostStep>>(std::move(steps));
  HostTask task;
  task.function = run_all;
  task.user_data = data.get();
  const CUresult error = HostFunctions::instance().enqueue(stream, task);
  if (error == CUDA_SUCCESS) (void)data.release();  // run_all()'s from now on
  return error;
}

}  // namespace mpsshim::interposer::forward
