// SPDX-License-Identifier: Apache-2.0
// How a thread goes about its work for some hundred milliseconds: it floods, waits after every few launches, pauses, or bursts. Then it changes.
#pragma once

#include <chrono>
#include <cstdint>

#include "random.hpp"

namespace mpsshim::soak {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  struct Step {
    bool waits = false;     // for the stream
    unsigned pause_us = 0;  // then
  };

  // Begins anew where its time is over.
  void renew(Random& random) {
    const Clock::time_point now = Clock::now();
    if (now < until_) return;
    until_ = now + std::chrono::milliseconds(random.between(50, 800));
    switch (random.below(5)) {
      case 0:
      case 1: wait_every_ = 0, pause_us_ = 0; break;                                               // floods
      case 2: wait_every_ = static_cast<unsigned>(random.between(1, 4)), pause_us_ = 0; break;     // waits often
      case 3: wait_every_ = static_cast<unsigned>(random.between(20, 200)), pause_us_ = 0; break;  // bursts
      case 4:                                                                                      // pauses
        wait_every_ = static_cast<unsigned>(random.between(1, 16));
        pause_us_ = static_cast<unsigned>(random.one_in(20) ? 200'000 : 50 * random.of_any_size(200));  // 0.05 to 10 ms
        break;
    }
  }
  // Behind a launch.
  [[nodiscard]] Step step(Random& random) {
    if (wait_every_ == 0 || ++launches_ % wait_every_ != 0) return {};
    return {true, pause_us_ == 0 || Clock::now() > until_ ? 0 : static_cast<unsigned>(random.between(pause_us_ / 2, pause_us_))};
  }

 private:
  Clock::time_point until_{};
  std::uint64_t launches_ = 0;
  unsigned wait_every_ = 0;
  unsigned pause_us_ = 0;
};

}  // namespace mpsshim::soak
