// SPDX-License-Identifier: Apache-2.0
// How long a worker stays at one thing of one session before everybody else has had a turn. What is left is continued in the session's next turn,
// from where it stopped.
//
// The clock is not read for every step. Short steps are counted (a launch queued, an operation issued): it is read once for so many of them, and
// behind each step that is no such. The budget begins with the first look at the clock, so a turn of a few short steps reads none at all.
// Of one thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace mpsshim::broker {

class TurnBudget {
 public:
  using Clock = std::chrono::steady_clock;

  // `short_steps`: where that count stands now.
  explicit TurnBudget(Clock::duration length, std::uint64_t short_steps = 0) : length_(length), last_(short_steps), looked_(short_steps) {}
  // For who has nobody else to serve.
  [[nodiscard]] static TurnBudget unlimited() { return TurnBudget(Clock::duration::max()); }

  // After a step; `short_steps` counts all the short ones so far. True for good once the time is up.
  [[nodiscard]] bool is_spent_after(std::uint64_t short_steps) {
    const bool was_short = short_steps != last_;
    last_ = short_steps;
    if (was_short && short_steps - looked_ < kStepsBetweenLooks) return is_spent_;
    looked_ = short_steps;
    return look();
  }
  // After a step that may have taken long.
  [[nodiscard]] bool look() {
    if (is_spent_ || length_ == Clock::duration::max()) return is_spent_;
    const Clock::time_point now = Clock::now();
    if (began_ == Clock::time_point{}) began_ = now;
    is_spent_ = now - began_ >= length_;
    return is_spent_;
  }
  [[nodiscard]] bool is_spent() const { return is_spent_; }

 private:
  static constexpr std::uint64_t kStepsBetweenLooks = 64;

  Clock::duration length_;
  Clock::time_point began_{};
  std::uint64_t last_;
  std::uint64_t looked_;
  bool is_spent_ = false;
};

}  // namespace mpsshim::broker
