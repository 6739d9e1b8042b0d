// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/sessions/session_home.hpp"

#include <algorithm>

namespace mpsshim::broker {

namespace {

constexpr unsigned kMoveAttempts = 4;         // batches before which streams are looked at that are to go to another context
constexpr std::size_t kMostStreamsAside = 4;  // of a session
static_assert(2 * kMostStreamsAside <= SideContext::kStreams);
constexpr std::chrono::seconds kShortestStay{1};

}  // namespace

void SessionHome::change_to(unsigned worker) {
  worker_ = worker;
  since_ = Clock::now();
  moves_left_ = kMoveAttempts;
  has_streams_aside_ |= worker != 0;
}

bool SessionHome::may_change(Clock::time_point now) const { return now - since_ >= kShortestStay && has_few_streams(); }

bool SessionHome::has_few_streams() const { return streams_.count() <= kMostStreamsAside; }

bool SessionHome::has_waited(Clock::time_point now) const { return now - waited_ < kWaitingCounts; }

void SessionHome::note_waiting(bool waits_often, Clock::time_point now) {
  if (waits_often) waited_ = now;
  if (!has_streams_aside_) return;
  if (worker_ != 0 && now - std::max(waited_, since_) >= kWaitingCounts) {
    change_to(0);
    move_streams();
  } else if (worker_ == 0 || (waits_often && streams_.count() <= kMostStreamsAside)) {
    moves_left_ = kMoveAttempts;
  }
}

void SessionHome::move_streams() {
  --moves_left_;
  if (!streams_.move_to(worker_ == 0 ? nullptr : &parts_.sides[worker_ - 1])) return;
  moves_left_ = 0;
  has_streams_aside_ = worker_ != 0;
}

}  // namespace mpsshim::broker
