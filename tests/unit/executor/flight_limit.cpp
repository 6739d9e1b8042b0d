// SPDX-License-Identifier: Apache-2.0
// What a stream may have in flight, alone and in a crowd.
#include "broker/executor/chains/flight_limit.hpp"

#include <atomic>
#include <chrono>

#include "broker/executor/streams/stream_account.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

using std::chrono::microseconds;

FlightLimit limit_in_crowd(microseconds operation, bool has_long_runs) {
  FlightLimit limit;
  limit.learn(100 * operation, 100);
  limit.set_crowded(true, has_long_runs);
  return limit;
}

}  // namespace

TEST_CASE("in a crowd a chain of long runs takes two milliseconds, and nothing stands behind it") {
  const FlightLimit limit = limit_in_crowd(microseconds(50), true);
  CHECK(limit.longest_chain() == 40);
  CHECK(limit.operations() == 20);  // behind half a chain of copies and single launches the next may follow
  CHECK(limit.progress_interval() == 1);
}

TEST_CASE("of long kernels one is in flight in a crowd") {
  const FlightLimit limit = limit_in_crowd(microseconds(5'000), true);
  CHECK(limit.longest_chain() == 1);
  CHECK(limit.operations() == 1);
}

// Whose client waits for every hundredth launch it would otherwise never be full, and never known.
TEST_CASE("a stream of long runs about which nothing is known has one chain in a crowd, until it has been full once") {
  FlightLimit limit;
  limit.set_crowded(true, true);
  CHECK(limit.longest_chain() == 32);
  CHECK(limit.operations() == 16);
  CHECK(limit.progress_interval() == 1);
  SECTION("its operations are tiny") {
    limit.learn(microseconds(60), 32);
    limit.set_crowded(true, true);
    CHECK(limit.longest_chain() == kMaxChain);
    CHECK(limit.operations() == FlightLimit::kFirst);
  }
  SECTION("they are not") {
    limit.learn(microseconds(1'600), 32);
    limit.set_crowded(true, true);
    CHECK(limit.longest_chain() == 40);
  }
  SECTION("there is no crowd any more") {
    limit.set_crowded(false, true);
    CHECK(limit.longest_chain() == kMaxChain);
    CHECK(limit.operations() == FlightLimit::kFirst);
  }
  SECTION("its runs are short") {
    limit.set_crowded(true, false);
    CHECK(limit.longest_chain() == kMaxChain);
    CHECK(limit.operations() == FlightLimit::kFirst);
  }
}

TEST_CASE("in a crowd a chain of short runs takes a millisecond, and one more may stand behind it") {
  const FlightLimit limit = limit_in_crowd(microseconds(50), false);
  CHECK(limit.longest_chain() == 20);
  CHECK(limit.operations() == 22);
  CHECK(limit.progress_interval() == 1);
}

TEST_CASE("a crowd of tiny operations is as if there were none") {
  for (const bool has_long_runs : {false, true}) CHECK(limit_in_crowd(microseconds(5), has_long_runs).longest_chain() == kMaxChain);
}

// The others in the connection hold up two of three chains, by twice as long as the chain itself takes.
TEST_CASE("what others hold up does not make chains shorter") {
  FlightLimit limit = limit_in_crowd(microseconds(50), false);
  for (int i = 0; i < 300; ++i) limit.learn(microseconds(i % 3 == 0 ? 2'000 : 6'000), 40);
  CHECK(limit.longest_chain() >= 18);
  CHECK(limit.longest_chain() <= 20);
}

TEST_CASE("kernels that have become longer make chains shorter soon, and shorter kernels make them longer at once") {
  FlightLimit limit = limit_in_crowd(microseconds(50), false);
  for (int i = 0; i < 12; ++i) limit.learn(microseconds(80'000), 40);
  CHECK(limit.longest_chain() <= 5);
  limit.learn(microseconds(2'000), 40);
  CHECK(limit.longest_chain() == 20);
}

TEST_CASE("a stream's runs are told by its fences: a long one is not all given in a crowd") {
  const std::atomic<std::uint32_t> completed{0};
  StreamAccount longer(0, FlightLimit::kFirst);
  longer.issue(40);
  CHECK_FALSE(longer.has_credit(true, completed));
  CHECK(longer.has_credit(false, completed));
  longer.end_run();
  CHECK_FALSE(longer.has_credit(true, completed));  // the next one is expected to be as long
  longer.end_run();
  CHECK(longer.has_credit(true, completed));
  StreamAccount shorter(0, FlightLimit::kFirst);
  for (int i = 0; i < 4; ++i) {
    shorter.issue(10);
    shorter.end_run();
  }
  CHECK(shorter.has_credit(true, completed));
}

}  // namespace mpsshim::broker
