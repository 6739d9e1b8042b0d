// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/workers/look_out.hpp"

#include <algorithm>
#include <utility>

#include "broker/executor/sessions/session.hpp"

namespace mpsshim::broker {

void LookOut::fall_quiet(Sessions sessions, Clock::time_point now) {
  if (std::exchange(owes_ring_, false)) parts_.bell.ring();
  expected_.reset();
  is_warm_ = false;
  fell_quiet_ = now;
  are_foreseen_ = true;
  for (const std::shared_ptr<Session>& session : sessions) {
    ArrivalForecast& arrivals = session->arrivals();
    const bool was_quiet = arrivals.is_quiet();
    arrivals.fall_quiet(now);
    const std::optional<ArrivalForecast::Window> window = arrivals.next();
    if (window && window->until > now && (!expected_ || window->from < expected_->from)) expected_ = window;
    are_foreseen_ &= was_quiet || window.has_value();
  }
  are_foreseen_ &= expected_.has_value();
}

void LookOut::note_arrival(Session& session) { owes_ring_ |= session.arrivals().come(Clock::now()) >= kLongQuiet; }

bool LookOut::is_due(Sessions sessions, Clock::time_point now) {
  if (!expected_) return false;
  if (now >= expected_->until) {
    fall_quiet(sessions, now);
    return false;
  }
  if (expected_->from - now > lateness_ + kNotWorthSleeping) return false;
  if (std::exchange(has_slept_, false)) {
    for (const std::shared_ptr<Session>& session : sessions) session->channel().ring().end_sleep();
  }
  if (!is_warm_ && now - fell_quiet_ >= kColdAfter) warm_up();
  return true;
}

// Once a window.
void LookOut::warm_up() {
  is_warm_ = true;
  if (!gate_.enter()) return;
  parts_.warm_launch(chains_);
  gate_.leave();
}

LookOut::Clock::duration LookOut::begin_sleep(Clock::time_point now, Clock::duration limit) {
  has_slept_ = true;
  wakes_at_ = {};
  const Clock::duration foreseen = expected_ ? expected_->from - now - lateness_ : Clock::duration::max();
  if (foreseen >= limit) return limit;
  wakes_at_ = now + foreseen;
  return std::max(foreseen, Clock::duration(0));
}

void LookOut::end_sleep(Clock::time_point now) {
  if (wakes_at_ == Clock::time_point{}) return;
  const Clock::duration late = std::clamp<Clock::duration>(now - wakes_at_, {}, kMostLateness);
  lateness_ = late > lateness_ ? (lateness_ + late) / 2 : lateness_ - (lateness_ - late) / 8;
}

}  // namespace mpsshim::broker
