// SPDX-License-Identifier: Apache-2.0
// Whether threads stand without a core.
#include "broker/executor/base/core_pressure.hpp"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

using std::chrono::milliseconds;

constexpr CorePressure::Clock::time_point moment(int ms) { return CorePressure::Clock::time_point(milliseconds(ms)); }

}  // namespace

TEST_CASE("cores are wanted for a while after a thread stood without one for a tenth of its time") {
  CorePressure pressure;
  CHECK_FALSE(pressure.is_high(moment(1'000)));
  pressure.note(moment(1'000), milliseconds(4), milliseconds(50));
  CHECK_FALSE(pressure.is_high(moment(1'000)));
  pressure.note(moment(1'000), milliseconds(5), milliseconds(50));
  CHECK(pressure.is_high(moment(1'000)));
  CHECK(pressure.is_high(moment(1'049)));
  CHECK_FALSE(pressure.is_high(moment(1'050)));
}

// Two threads that spin on one core.
TEST_CASE("the kernel tells how long a thread stood without a core") {
  if (access("/proc/thread-self/schedstat", R_OK) != 0) MPSSHIM_SKIP("this kernel does not count it");
  std::atomic<bool> stop{false};
  cpu_set_t one;
  CPU_ZERO(&one);
  const int core = sched_getcpu();
  REQUIRE(core >= 0);
  CPU_SET(static_cast<unsigned>(core), &one);
  const auto spin = [&] {
    (void)sched_setaffinity(0, sizeof one, &one);
    while (!stop.load(std::memory_order_relaxed)) {
    }
  };
  const auto start = std::chrono::steady_clock::now();
  std::chrono::nanoseconds delay{0};
  std::thread other(spin);
  std::thread measured([&] {
    (void)sched_setaffinity(0, sizeof one, &one);
    RunDelay without;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (delay < milliseconds(20) && std::chrono::steady_clock::now() < end) delay += without.take();
  });
  measured.join();
  stop = true;
  other.join();
  CHECK(delay >= milliseconds(20));
  CHECK(delay <= std::chrono::steady_clock::now() - start);  // each part of it is counted once
}

}  // namespace mpsshim::broker
