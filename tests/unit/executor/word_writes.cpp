// SPDX-License-Identifier: Apache-2.0
// Which streams get their words by memory operations.
#include "broker/executor/base/word_writes.hpp"

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;
using namespace std::chrono_literals;

namespace {

Rhythm::Clock::time_point fake_now{1h};
Rhythm::Clock::time_point fake_clock() { return fake_now; }

// Rounds that end at once and come `apart`, until `is_it`; 0: not within 100.
template <typename IsIt>
int rounds_until(Rhythm& stream, Rhythm::Clock::duration apart, IsIt is_it, bool is_alone = true) {
  for (int round = 1; round <= 100; ++round) {
    fake_now += apart;
    stream.note(
        is_alone, [] { return true; }, fake_clock);
    if (is_it()) return round;
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
  Rhythm stream;
  const auto is_it = [&] { return stream.is_short_and_alone(); };
  CHECK(rounds_until(stream, 10us, is_it) > 30);
  SECTION("somebody else has written") {
    stream.note(
        false, [] { return true; }, fake_clock);
  }
  SECTION("its last work took long") {
    fake_now += 1ms;
    stream.note(
        true, [] { return true; }, fake_clock);
  }
  SECTION("its last work is not over") {
    stream.note(
        true, [] { return false; }, fake_clock);
  }
  CHECK_FALSE(is_it());
  CHECK(rounds_until(stream, 10us, is_it) > 30);  // it begins anew
}

TEST_CASE("words: work is short after a few rounds, whoever else is at work") {
  Rhythm stream;
  const auto is_it = [&] { return stream.is_short(); };
  CHECK(rounds_until(stream, 800us, is_it, false) == 3);  // the first has none before it
  stream.note(
      false, [] { return false; }, fake_clock);
  CHECK_FALSE(is_it());
}

TEST_CASE("words: never for work that comes seldom") {
  Rhythm stream;
  CHECK(rounds_until(stream, 1200us, [&] { return stream.is_short() || stream.is_short_and_alone(); }) == 0);
}
