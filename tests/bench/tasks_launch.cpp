// SPDX-License-Identifier: Apache-2.0
// Tasks that launch kernels. Those with samples take one at least, however late a busy machine lets them begin.
#include <algorithm>

#include "tests/bench/tasks.hpp"

namespace mpsshim::bench {

void summarize(std::vector<double>& samples_us, Outcome& outcome) {
  if (samples_us.empty()) fail("no sample was taken in the time given");
  std::sort(samples_us.begin(), samples_us.end());
  outcome.median_us = samples_us[samples_us.size() / 2];
  outcome.p99_us = samples_us[samples_us.size() * 99 / 100];
  outcome.largest_us = samples_us.back();
}

// A synchronisation between bursts, so that neither a stream's depth nor a ring is what is measured.
void launch_call(Work& work) {
  constexpr int kBurst = 64;
  std::vector<double> samples;
  do {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kBurst; ++i) work.device.launch_count(1);
    samples.push_back(microseconds_since(start) / kBurst);
    work.device.synchronize();
    work.outcome.done += kBurst;
  } while (work.is_time_left());
  work.outcome.last_ns = now_ns();
  work.device.require_counted();
  summarize(samples, work.outcome);
}

void storm(Work& work) {
  const std::int64_t launches = work.order.argument[0];
  for (std::int64_t i = 0; i < launches; ++i) work.device.launch_count(1);
  work.outcome.done = static_cast<double>(launches);
  while (launches == 0 && work.is_time_left()) {
    for (int i = 0; i < 64; ++i) work.device.launch_count(1);
    work.outcome.done += 64;
  }
  work.device.synchronize();
  work.outcome.last_ns = now_ns();
  work.device.require_counted();
}

void cluster_storm(Work& work) {
  work.outcome.is_left_out = !Device::has_clusters();
  while (!work.outcome.is_left_out && work.is_time_left()) {
    for (int i = 0; i < 32; ++i) {
      work.device.launch_count(1);
      work.device.launch_in_cluster(1);
    }
    work.outcome.done += 64;
  }
  work.device.synchronize();
  work.outcome.last_ns = now_ns();
  work.device.require_counted();
}

void launch_sync(Work& work) {
  const std::int64_t launches = work.order.argument[0];
  std::vector<double> samples;
  samples.reserve(1 << 18);
  do {
    const Clock::time_point start = Clock::now();
    for (std::int64_t i = 0; i < launches; ++i) work.device.launch_count(1);
    work.device.synchronize();
    samples.push_back(microseconds_since(start));
    work.outcome.done += static_cast<double>(launches);
  } while (work.is_time_left());
  work.outcome.last_ns = now_ns();
  work.device.require_counted();
  summarize(samples, work.outcome);
}

void occupy(Work& work) {
  while (work.is_time_left()) {
    work.device.launch_occupy(static_cast<unsigned>(work.order.argument[0]), static_cast<unsigned>(work.order.argument[1]),
                              static_cast<std::uint64_t>(work.order.argument[2]));
    work.outcome.done += 1;
    if (const std::int64_t every = work.order.argument[3]; every != 0 && static_cast<std::int64_t>(work.outcome.done) % every == 0) {
      work.device.synchronize();
    }
  }
  work.device.synchronize();
  work.outcome.last_ns = now_ns();
  work.device.require_counted();
}

void paced_sync(Work& work) {
  std::vector<double> samples;
  std::int64_t next_ns = now_ns();
  do {
    while (now_ns() < next_ns) {
    }
    const Clock::time_point start = Clock::now();
    work.device.launch_count(1);
    work.device.synchronize();
    samples.push_back(microseconds_since(start));
    work.outcome.done += 1;
    next_ns = std::max(next_ns + work.order.argument[0], now_ns());
  } while (work.is_time_left());
  work.outcome.last_ns = now_ns();
  work.device.require_counted();
  summarize(samples, work.outcome);
}

// The next kernel is queued before the one that runs has ended: the device is never without one.
void long_kernels(Work& work) {
  CUevent ended[2];
  for (CUevent& event : ended) MPSSHIM_CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (unsigned turn = 0; work.is_time_left(); ++turn) {
    if (turn >= 2) MPSSHIM_CHECK(cuEventSynchronize(ended[turn % 2]));
    work.device.launch_occupy(8, 128, static_cast<std::uint64_t>(work.order.argument[0]));
    MPSSHIM_CHECK(cuEventRecord(ended[turn % 2], work.device.stream));
    work.outcome.done += 1;
  }
  work.device.synchronize();
  work.outcome.last_ns = now_ns();
  for (const CUevent event : ended) MPSSHIM_CHECK(cuEventDestroy(event));
  work.device.require_counted();
}

void check_only(Work& work) {
  work.device.launch_count(1);
  work.device.synchronize();
  work.outcome.last_ns = now_ns();
  work.outcome.done = 1;
  work.device.require_counted();
}

}  // namespace mpsshim::bench
