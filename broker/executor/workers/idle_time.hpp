// SPDX-License-Identifier: Apache-2.0
// How much of its time a worker has nothing to do. The clock is read only where the worker is idle anyway.
#pragma once

#include <chrono>
#include <utility>

namespace mpsshim::broker {

class IdleTime {
 public:
  using Clock = std::chrono::steady_clock;

  // A turn found nothing to do, or a sleep is over. Again and again while it is so.
  void note_idle(Clock::time_point now) {
    if (!is_idle()) since_ = counted_ = now;
    until_ = now;
  }
  void note_work() {
    count();
    since_ = {};
  }
  [[nodiscard]] bool is_idle() const { return since_ != Clock::time_point{}; }
  [[nodiscard]] Clock::duration so_far() const { return until_ - since_; }  // while idle
  // The percentage of the time since the last call in which there was something to do.
  [[nodiscard]] unsigned take_busy_percent(Clock::time_point now) {
    count();
    const Clock::duration all = now - std::exchange(taken_, now);
    const Clock::duration idle = std::exchange(idle_, Clock::duration(0));
    return all <= idle ? 0 : static_cast<unsigned>(100 * (all - idle) / all);
  }

 private:
  void count() {
    if (is_idle()) idle_ += until_ - std::exchange(counted_, until_);
  }

  Clock::time_point since_{};  // zero: at work
  Clock::time_point until_{};
  Clock::time_point counted_{};  // of the time from since_ on: what idle_ has
  Clock::time_point taken_{};
  Clock::duration idle_{0};
};

}  // namespace mpsshim::broker
