// SPDX-License-Identifier: Apache-2.0
// When a session that has fallen quiet will send something again, as far as its last pauses tell. A client that works at a pace (a step, a pause of
// a millisecond, the next step) then finds its worker awake, instead of paying for a sleeper's way back to its core.
//
// Pauses are measured from the worker's first turn without work to the first record after it. A forecast is made where all but the longest and the
// shortest of the last ones were alike, so one that was interrupted does no harm; where they differ there is none. What looking out costs is
// bounded by a share of the pause. Owned by the session, touched by its worker alone; free of the executor, time is the caller's.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>

namespace mpsshim::broker {

class ArrivalForecast {
 public:
  using Clock = std::chrono::steady_clock;

  // The worker has found nothing to do for it any more.
  void fall_quiet(Clock::time_point now) {
    if (!quiet_since_) quiet_since_ = now;
  }
  [[nodiscard]] bool is_quiet() const { return quiet_since_.has_value(); }
  // It has sent something after it was quiet. How long it was.
  Clock::duration come(Clock::time_point now);

  // When to look out for it, while it is quiet.
  struct Window {
    Clock::time_point from;
    Clock::time_point until;
  };
  [[nodiscard]] std::optional<Window> next() const;

 private:
  static constexpr std::size_t kPauses = 8;
  // A pause within a step: the worker is still awake.
  static constexpr std::chrono::microseconds kShortest{10};
  // The last pauses, but for their longest and shortest, may differ by this share of them, or by so much.
  static constexpr int kShare = 12;
  static constexpr std::chrono::microseconds kAlike{60};
  // The next one may be a little shorter than any. Looked out for each time, so this is what a forecast costs.
  static constexpr int kEarlyShare = 50;
  static constexpr std::chrono::microseconds kLeastEarly{10};
  static constexpr std::chrono::microseconds kMostEarly{120};
  // Or longer, which costs something only then.
  static constexpr int kLateShare = 8;
  static constexpr std::chrono::microseconds kLeastLate{40};
  static constexpr std::chrono::microseconds kMostLate{300};

  void learn();

  std::optional<Clock::time_point> quiet_since_;
  std::array<Clock::duration, kPauses> pauses_{};
  std::size_t count_ = 0;
  bool is_regular_ = false;
  Clock::duration earliest_{0};  // after it fell quiet
  Clock::duration latest_{0};
};

}  // namespace mpsshim::broker
