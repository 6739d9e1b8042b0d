// SPDX-License-Identifier: Apache-2.0
// Everything runs in the test's one thread: whoever waits turns the broker's loop.
#pragma once

#include <chrono>

#include "broker/control/base/event_loop.hpp"

namespace mpsshim::broker::control::testing {

// Turns the loop until `done` or the time is over.
template <typename Done>
bool turn_until(EventLoop& loop, Done&& done, int limit_ms = 20'000) {  // far more than any machine stands still
  const auto end = EventLoop::Clock::now() + std::chrono::milliseconds(limit_ms);
  while (!done()) {
    if (EventLoop::Clock::now() > end) return false;
    loop.turn(1);
  }
  return true;
}
inline void turn_for(EventLoop& loop, int ms) {
  (void)turn_until(
      loop, [] { return false; }, ms);
}

}  // namespace mpsshim::broker::control::testing
