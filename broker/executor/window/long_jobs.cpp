// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/window/long_jobs.hpp"

#include <algorithm>

namespace mpsshim::broker {

void LongJobs::look(std::uint32_t used, Clock::time_point now) {
  if (!seen_) seen_ = std::make_unique<std::array<Seen, kProgressStreams>>();
  for (std::uint32_t i = 0; i < used; ++i) {
    Seen& seen = (*seen_)[i];
    const std::uint32_t issued = progress_.stream[i].issued.load(std::memory_order_relaxed);
    if (i < used_ && issued == seen.issued) continue;
    seen = {issued, now};  // of a stream that is looked at for the first time nothing is known: it counts as at work
  }
  used_ = std::max(used_, used);
}

bool LongJobs::holds_back(const WindowJob& job, Clock::time_point now) const {
  if (!is_long(job) || paid_off_ <= now + kTimes * Clock::duration(kInARow)) return false;
  if (!seen_) return true;  // not looked yet
  for (std::uint32_t i = 0; i < used_; ++i) {
    const std::uint64_t session = progress_.stream[i].session.load(std::memory_order_relaxed);
    if (session != 0 && session != job.session && now - (*seen_)[i].changed < kWatch) return true;
  }
  return false;
}

void LongJobs::note(const WindowJob& job, Clock::duration took, Clock::time_point now) {
  if (is_long(job)) paid_off_ = std::max(paid_off_, now) + kTimes * took;
}

}  // namespace mpsshim::broker
