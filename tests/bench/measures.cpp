// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/measures.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/bench/device.hpp"

namespace mpsshim::bench {

namespace {

constexpr int kRounds = 2'000;

void require_count(const Device& device, unsigned expected) {
  const unsigned value = device.counter_value();
  if (value == expected) return;
  std::fprintf(stderr, "mpsbench: %u launches counted to %u\n", expected, value);
  std::exit(1);
}

// Calls in bursts of 64 with a synchronisation between, so that neither a stream's depth nor a ring is what is measured.
double launch_call() {
  const Device device;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < 64; ++i) device.launch_count(1);
    rounds.push_back(microseconds_since(start) / 64);
    device.synchronize();
  }
  require_count(device, kRounds * 64);
  return median(rounds);
}

double launch_and_synchronize(int launches) {
  const Device device;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < launches; ++i) device.launch_count(1);
    device.synchronize();
    rounds.push_back(microseconds_since(start));
  }
  require_count(device, static_cast<unsigned>(kRounds * launches));
  return median(rounds);
}
double launch_sync() { return launch_and_synchronize(1); }
double launch_8_sync() { return launch_and_synchronize(8); }

double launches_per_second() {
  constexpr int kLaunches = 100'000;
  const Device device;
  std::vector<double> rounds;
  for (int round = 0; round < 5; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kLaunches; ++i) device.launch_count(1);
    device.synchronize();
    rounds.push_back(kLaunches / microseconds_since(start) * 1e6);
  }
  require_count(device, 5 * kLaunches);
  return median(rounds);
}

template <typename Copy>
double copy_4k(Copy copy) {
  const Device device;
  CUdeviceptr memory = 0;
  MPSSHIM_CHECK(cuMemAlloc(&memory, 4096));
  std::array<unsigned char, 4096> host{};
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    copy(memory, host);
    rounds.push_back(microseconds_since(start));
  }
  MPSSHIM_CHECK(cuMemFree(memory));
  return median(rounds);
}
double copy_4k_to_device() {
  return copy_4k([](CUdeviceptr memory, auto& host) { MPSSHIM_CHECK(cuMemcpyHtoD(memory, host.data(), host.size())); });
}
double copy_4k_to_host() {
  return copy_4k([](CUdeviceptr memory, auto& host) { MPSSHIM_CHECK(cuMemcpyDtoH(host.data(), memory, host.size())); });
}

double allocate(std::size_t bytes) {
  const Device device;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    CUdeviceptr memory = 0;
    const Clock::time_point start = Clock::now();
    MPSSHIM_CHECK(cuMemAlloc(&memory, bytes));
    MPSSHIM_CHECK(cuMemFree(memory));
    rounds.push_back(microseconds_since(start));
  }
  return median(rounds);
}
double allocate_64k() { return allocate(64 << 10); }
double allocate_2m() { return allocate(2 << 20); }

template <typename Copy>
double copy_rate(Copy copy) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const Device device;
  CUdeviceptr memory = 0;
  MPSSHIM_CHECK(cuMemAlloc(&memory, kBytes));
  std::vector<unsigned char> host(kBytes, 1);
  std::vector<double> rounds;
  for (int round = 0; round < 5; ++round) {
    const Clock::time_point start = Clock::now();
    copy(memory, host);
    rounds.push_back(kBytes / microseconds_since(start) / 1e3);
  }
  MPSSHIM_CHECK(cuMemFree(memory));
  return median(rounds);
}
double pageable_to_device() {
  return copy_rate([](CUdeviceptr memory, auto& host) { MPSSHIM_CHECK(cuMemcpyHtoD(memory, host.data(), host.size())); });
}
double pageable_to_host() {
  return copy_rate([](CUdeviceptr memory, auto& host) { MPSSHIM_CHECK(cuMemcpyDtoH(host.data(), memory, host.size())); });
}

// The parent process times from exec to the end of this one's output; see run_child in mpsbench.cpp.
double first_launch() {
  const Device device;
  device.launch_count(1);
  device.synchronize();
  return 0;
}

constexpr std::array kMeasures{
    Measure{"launch-call", "launch call", "us", false, launch_call},
    Measure{"launch-sync", "launch + stream sync", "us", false, launch_sync},
    Measure{"launch-8-sync", "8 launches + sync", "us", false, launch_8_sync},
    Measure{"launch-rate", "dependent launches, 1 client", "1/s", true, launches_per_second},
    Measure{"copy-4k-htod", "4 KiB pageable copy to device", "us", false, copy_4k_to_device},
    Measure{"copy-4k-dtoh", "4 KiB pageable copy to host", "us", false, copy_4k_to_host},
    Measure{"copy-rate-htod", "256 MiB pageable copy to device", "GB/s", true, pageable_to_device},
    Measure{"copy-rate-dtoh", "256 MiB pageable copy to host", "GB/s", true, pageable_to_host},
    Measure{"alloc-64k", "cuMemAlloc + cuMemFree 64 KiB", "us", false, allocate_64k},
    Measure{"alloc-2m", "cuMemAlloc + cuMemFree 2 MiB", "us", false, allocate_2m},
    Measure{"attach", "exec to first launch done", "ms", false, first_launch},
};

}  // namespace

std::span<const Measure> measures() { return kMeasures; }

}  // namespace mpsshim::bench
