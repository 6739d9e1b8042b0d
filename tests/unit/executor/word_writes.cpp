// SPDX-License-Identifier: Apache-2.0
// Which streams get their words by memory operations.
#include "broker/executor/word_writes.hpp"

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;
using namespace std::chrono_literals;

namespace {

ShortAndAlone::Clock::time_point fake_now{1h};
ShortAndAlone::Clock::time_point fake_clock() { return fake_now; }

// Rounds that end at once and come `apart`, until memory operations are chosen; 0: not within 100.
int rounds_until_chosen(ShortAndAlone& stream, ShortAndAlone::Clock::duration apart) {
  for (int round = 1; round <= 100; ++round) {
    fake_now += apart;
    if (stream.note(true, [] { return true; }, fake_clock)) return round;
  }
  return 0;
}

}  // namespace

TEST_CASE("words: the last writer is whoever wrote last") {
  LastWriter last;
  CHECK_FALSE(last.again(3));
  CHECK(last.again(3));
  CHECK_FALSE(last.again(4));
  CHECK_FALSE(last.again(3));
}

TEST_CASE("words: memory operations are for a stream that has been alone with short work for a while") {
  ShortAndAlone stream;
  CHECK(rounds_until_chosen(stream, 10us) > 30);
  SECTION("somebody else has written") { CHECK_FALSE(stream.note(false, [] { return true; }, fake_clock)); }
  SECTION("its last work took long") {
    fake_now += 1ms;
    CHECK_FALSE(stream.note(true, [] { return true; }, fake_clock));
  }
  SECTION("its last work is not over") { CHECK_FALSE(stream.note(true, [] { return false; }, fake_clock)); }
  CHECK(rounds_until_chosen(stream, 10us) > 30);  // it begins anew
}

TEST_CASE("words: never for work that comes seldom") {
  ShortAndAlone stream;
  CHECK(rounds_until_chosen(stream, 200us) == 0);
}
