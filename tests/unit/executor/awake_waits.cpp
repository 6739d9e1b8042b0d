// SPDX-License-Identifier: Apache-2.0
// How long clients' waits may stay awake, by how many are at work.
#include "broker/executor/base/awake_waits.hpp"

#include <chrono>
#include <cstdint>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;
using namespace mpsshim::proto;
using std::chrono::milliseconds;

namespace {

constexpr unsigned kCores = 16;
const AwakeWaits::Clock::time_point kBegin = AwakeWaits::Clock::time_point{} + std::chrono::hours(1);

// Looks for so long, a millisecond apart, at so many sessions' work.
AwakeWaits::Clock::time_point watch(AwakeWaits& waits, std::uint64_t sessions, milliseconds time, AwakeWaits::Clock::time_point from) {
  for (milliseconds passed{0}; passed <= time; passed += milliseconds(1)) {
    for (std::uint64_t session = 1; session <= sessions; ++session) waits.see(session);
    waits.conclude(from + passed);
  }
  return from + time;
}

}  // namespace

TEST_CASE("awake waits: allowed as long as few are at work, and again when they are few again") {
  AwakeWaits waits(Latency::balanced, kCores);
  CHECK(waits.limit_us() == AwakeWaits::kBalancedUs);
  auto now = watch(waits, 6, milliseconds(100), kBegin);
  CHECK(waits.limit_us() == AwakeWaits::kBalancedUs);
  now = watch(waits, 7, milliseconds(50), now);
  CHECK(waits.limit_us() == 0);
  now = watch(waits, 200, milliseconds(50), now);
  CHECK(waits.limit_us() == 0);
  watch(waits, 1, milliseconds(100), now);
  CHECK(waits.limit_us() == AwakeWaits::kBalancedUs);
}

TEST_CASE("awake waits: sessions that take turns are as many as they are") {
  AwakeWaits waits(Latency::balanced, kCores);
  for (std::uint64_t look = 0; look < 500; ++look) {
    waits.see(1 + look % 10);
    waits.conclude(kBegin + look * std::chrono::microseconds(200));
  }
  CHECK(waits.limit_us() == 0);
}

TEST_CASE("awake waits: where there are no cores to spare nobody stays awake") { CHECK(AwakeWaits(Latency::balanced, 2).limit_us() == 0); }

TEST_CASE("awake waits: what was asked for holds whoever is at work") {
  AwakeWaits low(Latency::low, kCores);
  AwakeWaits saving(Latency::saving, kCores);
  watch(low, 100, milliseconds(50), kBegin);
  watch(saving, 1, milliseconds(50), kBegin);
  CHECK(low.limit_us() == kLowAwakeUs);
  CHECK(saving.limit_us() == 0);
}

TEST_CASE("awake waits: the words of the option") {
  CHECK(parse_latency("low") == Latency::low);
  CHECK(parse_latency("balanced") == Latency::balanced);
  CHECK(parse_latency("saving") == Latency::saving);
  CHECK_FALSE(parse_latency("Low"));
  CHECK_FALSE(parse_latency(""));
  CHECK(latency_word(Latency::saving) == std::string_view("saving"));
}

TEST_CASE("awake waits: a program's own word goes before the broker's, and balanced is the broker's") {
  for (const std::uint32_t told_us : {0U, AwakeWaits::kBalancedUs, kLowAwakeUs}) {
    INFO(told_us << " us told");
    CHECK(awake_limit_us(Latency::balanced, told_us) == told_us);
    CHECK(awake_limit_us(Latency::saving, told_us) == 0);
    CHECK(awake_limit_us(Latency::low, told_us) == kLowAwakeUs);
  }
}
