// SPDX-License-Identifier: Apache-2.0
// What a stream may have in flight, alone and in a crowd.
#include "broker/executor/chains/flight_limit.hpp"

#include <chrono>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

using std::chrono::microseconds;
using Clock = FlightLimit::Clock;

constexpr std::size_t kLongRun = 100;

FlightLimit limit_in_crowd(microseconds operation) {
  FlightLimit limit;
  limit.learn(100 * operation, 100);
  limit.set_crowded(true, kLongRun);
  return limit;
}

}  // namespace

TEST_CASE("in a crowd a chain takes two milliseconds, and the next may follow when that is about to end") {
  FlightLimit limit = limit_in_crowd(microseconds(50));
  REQUIRE(limit.is_crowded());
  CHECK(limit.longest_chain() == 40);
  CHECK(limit.progress_interval() == 1);
  CHECK(limit.admits(0));
  limit.launched(32, Clock::now());
  CHECK_FALSE(limit.admits(32));
  CHECK(limit.admits_light(32));
  // As if it had been launched as long ago as it takes.
  FlightLimit later = limit_in_crowd(microseconds(50));
  later.launched(32, Clock::now() - microseconds(32 * 50));
  CHECK(later.admits(32));
  CHECK_FALSE(later.admits(42));  // operations take longer than they did: what is in flight is not over by then
}

TEST_CASE("in a crowd short chains follow each other without a gap") {
  FlightLimit limit = limit_in_crowd(microseconds(15));
  const Clock::time_point now = Clock::now();
  limit.launched(1, now);
  limit.launched(1, now);
  CHECK(limit.admits(2));  // 30 us
  limit.launched(20, now);
  CHECK_FALSE(limit.admits(22));
}

TEST_CASE("in a crowd a long run whose operations nobody knows waits for the end of its first chain, a short one for nothing") {
  FlightLimit limit;
  limit.set_crowded(true, kLongestExactChain);
  CHECK_FALSE(limit.is_crowded());
  limit.set_crowded(true, kLongestExactChain + 1);
  REQUIRE(limit.is_crowded());
  CHECK(limit.longest_chain() == kMaxChain);
  limit.launched(kMaxChain, Clock::now() - std::chrono::seconds(1));
  CHECK_FALSE(limit.admits(kMaxChain));
  limit.learn(kMaxChain * microseconds(50), kMaxChain);
  CHECK(limit.longest_chain() == 40);
  limit.set_crowded(false, kLongRun);
  CHECK(limit.admits(kMaxChain));
}

TEST_CASE("a crowd of tiny operations is as if there were none") {
  const FlightLimit limit = limit_in_crowd(microseconds(5));
  CHECK_FALSE(limit.is_crowded());
  CHECK(limit.longest_chain() == kMaxChain);
  FlightLimit unknown;
  unknown.set_crowded(true, kLongRun);
  unknown.learn(kMaxChain * microseconds(5), kMaxChain);
  unknown.set_crowded(true, kLongRun);
  CHECK_FALSE(unknown.is_crowded());
}

// Now and then others in the connection hold up a chain, by as long as it takes itself.
TEST_CASE("what others hold up does not make chains shorter") {
  FlightLimit limit = limit_in_crowd(microseconds(50));
  for (int i = 0; i < 300; ++i) limit.learn(microseconds(i % 3 == 0 ? 2'000 : 6'000), 40);
  CHECK(limit.longest_chain() >= 36);
  CHECK(limit.longest_chain() <= 40);
}

TEST_CASE("kernels that have become longer make chains shorter soon, and shorter kernels make them longer at once") {
  FlightLimit limit = limit_in_crowd(microseconds(50));
  for (int i = 0; i < 12; ++i) limit.learn(microseconds(80'000), 40);
  CHECK(limit.longest_chain() <= 10);
  limit.learn(microseconds(2'000), 40);
  CHECK(limit.longest_chain() == 40);
}

}  // namespace mpsshim::broker
