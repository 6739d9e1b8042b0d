// SPDX-License-Identifier: Apache-2.0
// Tasks of a client that does something else between two pieces of work: sleeps, waits for a kernel, or prepares its next step.
#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>

#include "tests/bench/host_buffer.hpp"
#include "tests/bench/tasks.hpp"

namespace mpsshim::bench {

namespace {

// Sleeps, never spins: what a sleeping client's core, and the broker, do meanwhile is part of what is measured.
void pause_for(std::int64_t duration_ns) {
  timespec left{duration_ns / 1'000'000'000, duration_ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) != 0) {
  }
}

template <typename Piece>
void paused(Work& work, Piece piece) {
  const std::size_t wanted = std::min(static_cast<std::size_t>(work.order.argument[1]), work.samples_us.size());
  if (wanted == 0) fail("this worker has no room for samples");
  while (work.outcome.samples < wanted && work.is_time_left()) {
    pause_for(work.order.argument[0]);
    const Clock::time_point start = Clock::now();
    piece();
    work.samples_us[work.outcome.samples++] = static_cast<float>(microseconds_since(start));
    work.outcome.done += 1;
  }
  work.outcome.last_ns = now_ns();
}

}  // namespace

void paused_sync(Work& work) {
  paused(work, [&work] {
    work.device.launch_count(1);
    work.device.synchronize();
  });
  work.device.require_counted();
}

void paused_copy(Work& work) {
  constexpr std::uint32_t kSent = 2;
  const auto bytes = static_cast<std::size_t>(work.order.argument[2]);
  HostBuffer host(bytes, work.order.argument[3] != 0, kSent);
  CUdeviceptr memory = 0;
  MPSSHIM_CHECK(cuMemAlloc(&memory, bytes));
  MPSSHIM_CHECK(cuMemcpyHtoD(memory, host.data(), bytes));
  paused(work, [&] {
    host.data()[0] = 0;  // what is there already would look like what was copied
    MPSSHIM_CHECK(cuMemcpyDtoH(host.data(), memory, bytes));
    if (host.data()[0] != kSent) fail("wrong result: a copy that has returned is not there");
  });
  host.require_content(kSent);
  MPSSHIM_CHECK(cuMemFree(memory));
}

void waited_kernel(Work& work) {
  const std::int64_t kernel_ns = work.order.argument[0];
  const std::size_t wanted = std::min(static_cast<std::size_t>(work.order.argument[1]), work.samples_us.size());
  if (wanted == 0) fail("this worker has no room for samples");
  while (work.outcome.samples < wanted && work.is_time_left()) {
    const Clock::time_point start = Clock::now();
    work.device.launch_occupy(1, 32, static_cast<std::uint64_t>(kernel_ns));
    work.device.synchronize();
    work.samples_us[work.outcome.samples++] = static_cast<float>(microseconds_since(start) - static_cast<double>(kernel_ns) / 1000);
    work.outcome.done += 1;
  }
  work.outcome.last_ns = now_ns();
  work.device.require_counted();
}

// As a training step is: input up from pinned memory, kernels, an event; the host is at most so many steps ahead.
void upload_steps(Work& work) {
  constexpr std::size_t kAhead = 4;
  constexpr int kKernels = 3;
  const auto bytes = static_cast<std::size_t>(work.order.argument[0]);
  const std::size_t last_word = bytes / sizeof(std::uint32_t) - 1;
  std::array<HostBuffer, kAhead> input{{{bytes, true, 1}, {bytes, true, 2}, {bytes, true, 3}, {bytes, true, 4}}};
  HostBuffer result(bytes, true, 0);
  CUdeviceptr memory = 0;
  CUevent step_done = nullptr;
  MPSSHIM_CHECK(cuMemAlloc(&memory, bytes));
  MPSSHIM_CHECK(cuEventCreate(&step_done, CU_EVENT_DISABLE_TIMING));
  std::uint32_t step = 0;
  for (; step == 0 || work.is_time_left(); ++step) {
    HostBuffer& buffer = input[step % kAhead];
    buffer.data()[0] = buffer.data()[last_word] = step;
    MPSSHIM_CHECK(cuMemcpyHtoDAsync(memory, buffer.data(), bytes, work.device.stream));
    for (int i = 0; i < kKernels; ++i) work.device.launch_occupy(8, 128, static_cast<std::uint64_t>(work.order.argument[1]));
    MPSSHIM_CHECK(cuEventRecord(step_done, work.device.stream));
    if (step % kAhead == kAhead - 1) MPSSHIM_CHECK(cuEventSynchronize(step_done));
    work.outcome.done += 1;
  }
  work.device.synchronize();
  work.outcome.last_ns = now_ns();
  MPSSHIM_CHECK(cuMemcpyDtoH(result.data(), memory, bytes));
  if (std::memcmp(result.data(), input[(step - 1) % kAhead].data(), bytes) != 0) fail("wrong result: the last upload is not on the device");
  work.device.require_counted();
  MPSSHIM_CHECK(cuEventDestroy(step_done));
  MPSSHIM_CHECK(cuMemFree(memory));
}

}  // namespace mpsshim::bench
