// SPDX-License-Identifier: Apache-2.0
// How busy a worker is.
#include "broker/executor/workers/idle_time.hpp"

#include <chrono>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

using std::chrono::microseconds;

constexpr IdleTime::Clock::time_point at(int us) { return IdleTime::Clock::time_point(microseconds(us)); }

}  // namespace

TEST_CASE("a worker is busy for the part of the time in which turns had something to do") {
  IdleTime idle;
  (void)idle.take_busy_percent(at(1'000));
  idle.note_idle(at(1'600));
  idle.note_idle(at(1'900));
  CHECK(idle.so_far() == microseconds(300));
  idle.note_work();
  CHECK_FALSE(idle.is_idle());
  CHECK(idle.take_busy_percent(at(2'000)) == 70);
  CHECK(idle.take_busy_percent(at(3'000)) == 100);
}

TEST_CASE("an idle time is counted once, though it is asked for meanwhile") {
  IdleTime idle;
  (void)idle.take_busy_percent(at(1'000));
  idle.note_idle(at(1'500));
  idle.note_idle(at(2'000));
  CHECK(idle.take_busy_percent(at(2'000)) == 50);
  idle.note_idle(at(3'000));
  CHECK(idle.so_far() == microseconds(1'500));
  CHECK(idle.take_busy_percent(at(3'000)) == 0);
}

}  // namespace mpsshim::broker
