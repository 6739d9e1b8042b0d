// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/sessions/arrival_forecast.hpp"

#include <algorithm>
#include <utility>

namespace mpsshim::broker {

ArrivalForecast::Clock::duration ArrivalForecast::come(Clock::time_point now) {
  if (!quiet_since_) return {};
  const Clock::duration pause = now - *std::exchange(quiet_since_, std::nullopt);
  if (pause < kShortest) return pause;
  pauses_[count_++ % kPauses] = pause;
  if (count_ >= kPauses) learn();
  return pause;
}

void ArrivalForecast::learn() {
  std::array<Clock::duration, kPauses> sorted = pauses_;
  std::sort(sorted.begin(), sorted.end());
  const Clock::duration shortest = sorted[1];
  const Clock::duration longest = sorted[kPauses - 2];
  earliest_ = shortest - std::clamp<Clock::duration>(shortest / kEarlyShare, kLeastEarly, kMostEarly);
  latest_ = longest + std::clamp<Clock::duration>(longest / kLateShare, kLeastLate, kMostLate);
  is_regular_ = longest - shortest <= std::max<Clock::duration>(kAlike, shortest / kShare);
}

std::optional<ArrivalForecast::Window> ArrivalForecast::next() const {
  if (!quiet_since_ || !is_regular_) return std::nullopt;
  return Window{*quiet_since_ + earliest_, *quiet_since_ + latest_};
}

}  // namespace mpsshim::broker
