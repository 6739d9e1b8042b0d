// SPDX-License-Identifier: Apache-2.0
// How long a process that nobody needs is kept. The end of one that has a context, and the start of the next, hold up everybody's driver calls for
// tens of milliseconds (docs/experiments/2026-11-25-stalls-of-contexts.md), so one that was wanted again soon after its end is kept twice as long
// the next time. Owned by Compilers.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>

namespace mpsshim::broker::control {

template <typename Whose>
class IdleTimes {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  IdleTimes(Milliseconds least, Milliseconds most) : least_(least), most_(std::max(least, most)) {}

  [[nodiscard]] Milliseconds of(const Whose& whose) const {
    const auto found = entries_.find(whose);
    return found == entries_.end() ? least_ : found->second.time;
  }
  // It ends, since it has been idle for so long.
  void note_end(const Whose& whose, Clock::time_point now) { entries_.insert_or_assign(whose, Entry{of(whose), now}); }
  // One is started.
  void note_start(const Whose& whose, Clock::time_point now) {
    std::erase_if(entries_, [&](const auto& entry) { return now - entry.second.ended > kSoon * entry.second.time; });
    if (const auto found = entries_.find(whose); found != entries_.end()) found->second.time = std::min(2 * found->second.time, most_);
  }

 private:
  static constexpr int kSoon = 10;  // times as long as it was kept
  struct Entry {
    Milliseconds time;
    Clock::time_point ended;
  };

  const Milliseconds least_;
  const Milliseconds most_;
  std::map<Whose, Entry> entries_;
};

}  // namespace mpsshim::broker::control
