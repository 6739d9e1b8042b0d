// SPDX-License-Identifier: Apache-2.0
// Whether the GPU is taken to stand still while a probe of the fault watch is out. A probe may be out for milliseconds on a GPU that works: it stands
// behind other streams' work in its connection, or the multiprocessors are full. Then work of others ends meanwhile, which proves as much as the
// probe's return would: after a fault compute stands still at once.
// What a look finds ended may have ended before the probe was launched, unless a look in between found it not. So the first look behind the launch
// proves nothing. Used by the fault watch's thread; free of the driver, time is the caller's.
#pragma once

#include <chrono>

namespace mpsshim::broker {

class StallSuspicion {
 public:
  using Clock = std::chrono::steady_clock;

  // A probe is under way. `at_once`: the GPU is suspected from now on, and not only when nothing has ended for a while.
  void begin(bool at_once, Clock::time_point now) {
    at_once_ = at_once;
    was_looked_at_ = has_got_on_ = false;
    stands_since_ = now;
  }
  // A look at all streams while it is out. `has_ended`: somebody's work has, since the look before.
  void look(bool has_ended, Clock::time_point now) {
    if (has_ended && was_looked_at_) {
      has_got_on_ = true;
      stands_since_ = now;
    }
    was_looked_at_ = true;
  }

  // Idle sessions' records are better left in their rings.
  [[nodiscard]] bool is_stalled(Clock::time_point now) const {
    const Clock::duration stands = now - stands_since_;
    return has_got_on_ ? stands >= kStill : at_once_ || stands >= kPatience;
  }
  // It stands for so long that the driver is to be asked.
  [[nodiscard]] bool is_question_due(Clock::time_point now) const { return now - stands_since_ >= kPatience; }

  static constexpr std::chrono::microseconds kStill{200};  // a GPU that has got on with the probe out is suspected anew after so long
  static constexpr std::chrono::milliseconds kPatience{1};

 private:
  bool at_once_ = false;
  bool was_looked_at_ = false;
  bool has_got_on_ = false;
  Clock::time_point stands_since_{};  // nothing is known to have ended since, the launch of the probe first
};

}  // namespace mpsshim::broker
