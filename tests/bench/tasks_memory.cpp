// SPDX-License-Identifier: Apache-2.0
// Tasks that allocate and copy.
#include "tests/bench/host_buffer.hpp"
#include "tests/bench/tasks.hpp"

namespace mpsshim::bench {

namespace {

void copy(CUdeviceptr memory, HostBuffer& host, std::size_t bytes, bool is_to_host) {
  if (is_to_host) {
    MPSSHIM_CHECK(cuMemcpyDtoH(host.data(), memory, bytes));
  } else {
    MPSSHIM_CHECK(cuMemcpyHtoD(memory, host.data(), bytes));
  }
}

// The content goes to the device and comes back, one of the ways by the copy that is measured.
template <typename Measured>
void round_trip(const Order& order, Measured measured) {
  const auto bytes = static_cast<std::size_t>(order.argument[0]);
  const bool is_to_host = order.argument[1] != 0;
  CUdeviceptr memory = 0;
  MPSSHIM_CHECK(cuMemAlloc(&memory, bytes));
  HostBuffer measured_side(bytes, order.argument[2] != 0, is_to_host ? 1 : 2);
  {
    HostBuffer other_side(bytes, order.argument[2] != 0, is_to_host ? 2 : 1);
    if (is_to_host) copy(memory, other_side, bytes, false);
    measured(memory, measured_side, bytes, is_to_host);
    if (!is_to_host) copy(memory, other_side, bytes, true);
    (is_to_host ? measured_side : other_side).require_content(2);
  }
  MPSSHIM_CHECK(cuMemFree(memory));
}

}  // namespace

void allocate(Work& work) {
  const auto bytes = static_cast<std::size_t>(work.order.argument[0]);
  std::vector<double> samples;
  samples.reserve(1 << 20);
  do {
    CUdeviceptr memory = 0;
    const Clock::time_point start = Clock::now();
    MPSSHIM_CHECK(cuMemAlloc(&memory, bytes));
    MPSSHIM_CHECK(cuMemFree(memory));
    samples.push_back(microseconds_since(start));
    work.outcome.done += 1;
  } while (work.is_time_left());
  work.outcome.last_ns = now_ns();
  summarize(samples, work.outcome);
}

void copy_small(Work& work) {
  round_trip(work.order, [&work](CUdeviceptr memory, HostBuffer& host, std::size_t bytes, bool is_to_host) {
    std::vector<double> samples;
    samples.reserve(1 << 18);
    do {
      const Clock::time_point start = Clock::now();
      copy(memory, host, bytes, is_to_host);
      samples.push_back(microseconds_since(start));
      work.outcome.done += 1;
    } while (work.is_time_left());
    work.outcome.last_ns = now_ns();
    summarize(samples, work.outcome);
  });
}

// A copy before it that does not count: what is set up at the first one is not a rate.
void copy_large(Work& work) {
  round_trip(work.order, [&work](CUdeviceptr memory, HostBuffer& host, std::size_t bytes, bool is_to_host) {
    copy(memory, host, bytes, is_to_host);
    for (double& piece_us : work.outcome.piece_us) {
      const Clock::time_point start = Clock::now();
      copy(memory, host, bytes, is_to_host);
      piece_us = microseconds_since(start);
      work.outcome.done += 1;
    }
    work.outcome.last_ns = now_ns();
  });
}

}  // namespace mpsshim::bench
