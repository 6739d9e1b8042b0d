// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/streams/stream_account.hpp"

#include "broker/executor/base/progress.hpp"

namespace mpsshim::broker {

// The clock is read for a stream with much in flight only: others never come near the limit.
void StreamAccount::progress_submitted() {
  const std::uint32_t in_flight = issued_ - known_done_.position;
  written_ = issued_;
  if (in_flight < (limit_.operations() + 1) / 2) {
    under_way_.push_back({written_, submissions_});
  } else {
    under_way_.push_back({written_, submissions_, in_flight, FlightLimit::Clock::now()});
  }
}

void StreamAccount::learn_progress(std::uint32_t completed) {
  Written asked{};
  while (!under_way_.empty() && progress_reached(completed, under_way_.front().position)) {
    known_done_ = under_way_.front();
    under_way_.pop_front();
    if (known_done_.when != FlightLimit::Clock::time_point{}) asked = known_done_;
  }
  // Seen late, where nobody was waiting for it, it would say nothing.
  if (lacked_credit_ && asked.in_flight != 0) limit_.learn(FlightLimit::Clock::now() - asked.when, asked.in_flight);
}

bool StreamAccount::has_credit(bool is_crowded, const std::atomic<std::uint32_t>& completed) {
  limit_.set_crowded(is_crowded, has_long_runs());
  if (is_within_credit()) return true;
  learn_progress(completed.load(std::memory_order_acquire));
  lacked_credit_ = !is_within_credit();
  return !lacked_credit_;
}

}  // namespace mpsshim::broker
