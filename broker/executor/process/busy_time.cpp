// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/busy_time.hpp"

#include <algorithm>
#include <utility>

namespace mpsshim::broker {

void BusyTime::see(std::uint32_t row) {
  if (row == 0 || row >= kCountedSessions || is_seen_.test(row)) return;
  is_seen_.set(row);
  seen_.push_back(row);
}

void BusyTime::begin(Clock::time_point now) {
  span_.reset();
  counted_until_ = now;
  has_begun_ = true;
  seen_before_.clear();
}

void BusyTime::conclude(Clock::time_point now, SessionCountsView& counts) {
  if (span_ && now >= span_->look) {
    counted_until_ = std::max(span_->end, now);
    add(seen_, counted_until_ - span_->begin, counts);
    span_.reset();
    is_behind_span_ = true;
  } else if (!span_ && now > counted_until_) {
    // The look before this one said nothing of the span's end.
    const Clock::duration passed = now - counted_until_, of_this_look = std::exchange(is_behind_span_, false) ? passed : passed / 2;
    counted_until_ = now;
    add(seen_, of_this_look, counts);
    add(seen_before_, passed - of_this_look, counts);
  }
  for (const std::uint32_t row : seen_) is_seen_.reset(row);
  seen_before_.swap(seen_);
  seen_.clear();
}

void BusyTime::add(const std::vector<std::uint32_t>& rows, Clock::duration time, SessionCountsView& counts) {
  const auto more = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
  for (const std::uint32_t row : rows) {
    std::atomic<std::uint64_t>& total = counts[row].gpu_ns;  // written by nobody else
    total.store(total.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
}

BusyTime::Clock::duration BusyTime::until_next(Clock::time_point now, Clock::duration planned, bool is_at_rest) {
  if (!span_ && (is_at_rest || has_begun_)) {
    has_begun_ = false;
    const Clock::time_point begin = std::max(now, counted_until_);
    span_ = Span{begin, begin + planned, begin + lot(planned)};
  }
  return span_ ? std::clamp(span_->look - now, Clock::duration(0), planned) : planned;
}

// xorshift32: looks are to be independent of what programs do, no more.
BusyTime::Clock::duration BusyTime::lot(Clock::duration below) {
  state_ ^= state_ << 13;
  state_ ^= state_ >> 17;
  state_ ^= state_ << 5;
  return Clock::duration(static_cast<Clock::rep>(state_) * below.count() / (Clock::rep{1} << 32));
}

}  // namespace mpsshim::broker
