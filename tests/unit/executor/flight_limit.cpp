// SPDX-License-Identifier: Apache-2.0
// What a stream may have in flight, alone and in a crowd.
#include "broker/executor/chains/flight_limit.hpp"

#include <chrono>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

using std::chrono::microseconds;

FlightLimit limit_in_crowd(microseconds operation) {
  FlightLimit limit;
  limit.learn(100 * operation, 100);
  limit.set_crowded(true);
  return limit;
}

}  // namespace

TEST_CASE("in a crowd a chain takes a millisecond, and one more may stand behind it") {
  const FlightLimit limit = limit_in_crowd(microseconds(50));
  CHECK(limit.longest_chain() == 20);
  CHECK(limit.operations() == 22);
  CHECK(limit.progress_interval() == 1);
}

TEST_CASE("a crowd of tiny operations is as if there were none") {
  const FlightLimit limit = limit_in_crowd(microseconds(5));
  CHECK(limit.longest_chain() == kMaxChain);
}

// The others in the connection hold up two of three chains, by twice as long as the chain itself takes.
TEST_CASE("what others hold up does not make chains shorter") {
  FlightLimit limit = limit_in_crowd(microseconds(50));
  for (int i = 0; i < 300; ++i) limit.learn(microseconds(i % 3 == 0 ? 2'000 : 6'000), 40);
  CHECK(limit.longest_chain() >= 18);
  CHECK(limit.longest_chain() <= 20);
}

TEST_CASE("kernels that have become longer make chains shorter soon, and shorter kernels make them longer at once") {
  FlightLimit limit = limit_in_crowd(microseconds(50));
  for (int i = 0; i < 12; ++i) limit.learn(microseconds(80'000), 40);
  CHECK(limit.longest_chain() <= 5);
  limit.learn(microseconds(2'000), 40);
  CHECK(limit.longest_chain() == 20);
}

}  // namespace mpsshim::broker
