// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/stall_sense.hpp"

#include <algorithm>

namespace mpsshim::broker {

void StallSense::ended(Stream& stream, Clock::duration took, Clock::time_point now) {
  stream.usual = std::max(took, stream.usual - stream.usual / 8);
  ++stream.ends;
  last_end_ = now;
  any_ended_ = true;
}

void StallSense::see(std::uint32_t index, std::uint64_t session, std::uint32_t issued, std::uint32_t completed, Clock::time_point now) {
  if (index >= streams_.size()) streams_.resize(index + 1);
  Stream& stream = streams_[index];
  if (stream.session != session) {
    stream = Stream{};
    stream.session = session;
    stream.completed = completed;
  }
  if (session == 0) return;
  const bool is_busy = issued != completed;
  if (completed != stream.completed) {
    // What began and ended between two looks took no time that could be measured.
    ended(stream, stream.is_busy ? now - stream.since : Clock::duration(0), now);
    stream.since = now;
  }
  if (is_busy && !stream.is_busy) stream.since = now;
  stream.completed = completed;
  stream.is_busy = is_busy;
  stream.is_overdue = is_busy && stream.ends >= kEnough && now - stream.since > std::max(shortest_, 2 * stream.usual);
  any_busy_ |= is_busy;
  any_overdue_ |= stream.is_overdue;
}

StallSense::Verdict StallSense::conclude(Clock::time_point now) {
  Verdict verdict{any_busy_, any_ended_, any_busy_ || any_ended_, any_overdue_, Clock::duration(0)};
  if (!any_busy_) last_end_ = now;
  verdict.quiet = now - last_end_;
  any_busy_ = any_ended_ = any_overdue_ = false;
  return verdict;
}

void StallSense::absolve(Clock::time_point now) {
  last_end_ = now;
  for (Stream& stream : streams_) {
    if (stream.is_overdue) stream.usual = std::max(stream.usual, now - stream.since);
  }
}

}  // namespace mpsshim::broker
