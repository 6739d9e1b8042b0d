// SPDX-License-Identifier: Apache-2.0
// A worker that is short of time lets a run of launches grow for a moment before it hands it on: a launch in a chain of eight costs it a third of
// what one by itself does, and chains that always begin at the same place of a program find a graph that has their functions
// (docs/experiments/2026-11-28-launches-gathered.md). Who waits has posted a fence behind the run, which ends the moment.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace mpsshim::broker {

// Of one run, the one at the head of a queue. The clock is read while one waits.
class Gathering {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kLongest{200};  // some ten launches of an interpreter's

  // Whether it waits for more launches. One that may not, since something stands behind it, goes out, as does one that has waited long enough.
  template <typename Now>
  [[nodiscard]] bool waits(bool may_grow, Now&& now) {
    if (may_grow) {
      const Clock::time_point at = now();
      if (since_ == Clock::time_point{}) since_ = at;
      if (at - since_ < kLongest) return true;
    }
    since_ = {};
    return false;
  }

 private:
  Clock::time_point since_{};  // zero: none waits
};

// Whether a worker that works for several sessions is short of time: most of it goes by with work while threads stand without a core (CorePressure),
// or a fourth of it in front of the lock of a driver's context. Looked at every few milliseconds.
class TimeShortage {
 public:
  // Of the time since the last look: with work, 0 while cores are free; in front of locks.
  void note(unsigned busy_percent, unsigned locked_percent, std::size_t sessions_at_work) {
    const unsigned percent = sessions_at_work > 1 ? std::min(std::max(busy_percent, kWeightOfLocks * locked_percent), 100U) : 0;
    eighths_ = eighths_ + percent - eighths_ / kLooks;
    const unsigned mean = eighths_ / kLooks;
    is_short_ = mean >= (is_short_ ? kEnoughPercent : kShortPercent);
  }
  [[nodiscard]] bool is_short() const { return is_short_; }

 private:
  static constexpr unsigned kLooks = 8;
  static constexpr unsigned kWeightOfLocks = 3;
  static constexpr unsigned kShortPercent = 70;
  static constexpr unsigned kEnoughPercent = 30;  // less than half as much is to be done then, since gathering saves that

  unsigned eighths_ = 0;  // eight times the mean
  bool is_short_ = false;
};

}  // namespace mpsshim::broker
