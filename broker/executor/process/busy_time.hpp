// SPDX-License-Identifier: Apache-2.0
// Adds up for how long each session has work under way, from looks at the progress table that are made anyway (docs/seeing.md, "GPU time"). Of the
// time between two looks each stands for one half. That alone would be wrong where the pace of looks depends on what they see: after a pause the
// first look that finds work is followed by quick ones, and a doorbell that ends a sleep rings because work comes. So in a pause each span of time
// has one look that counts, at a moment drawn by lot, whatever other looks there are in it: then short work is found as often as it should be.
// Used by the fault watch's thread; free of the driver, time and lots are the caller's.
#pragma once

#include <bitset>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "broker/session_counts.hpp"

namespace mpsshim::broker {

class BusyTime {
 public:
  using Clock = std::chrono::steady_clock;
  explicit BusyTime(std::uint32_t seed) : state_(seed | 1u) {}

  // Of one look: work of that row of SessionCountsFile is under way. As often as it is seen.
  void see(std::uint32_t row);
  // The look is over; `counts` has the rows that were seen.
  void conclude(Clock::time_point now, SessionCountsView& counts);
  // Nothing counts that was before: looks begin, or a sleep is over that came after all work.
  void begin(Clock::time_point now);
  // How long until the next look, which is to come after `planned` at the latest. At rest looks come slowly, and the one that counts by lot.
  [[nodiscard]] Clock::duration until_next(Clock::time_point now, Clock::duration planned, bool is_at_rest);

 private:
  struct Span {
    Clock::time_point begin;
    Clock::time_point end;
    Clock::time_point look;  // the first one from then on counts
  };
  [[nodiscard]] Clock::duration lot(Clock::duration below);
  static void add(const std::vector<std::uint32_t>& rows, Clock::duration time, SessionCountsView& counts);

  Clock::time_point counted_until_{};
  bool has_begun_ = false;  // the next span has a look by lot, be there work or not
  std::optional<Span> span_;
  bool is_behind_span_ = false;  // since the last one nothing was counted
  std::bitset<kCountedSessions> is_seen_;
  std::vector<std::uint32_t> seen_;
  std::vector<std::uint32_t> seen_before_;  // by the look before this one
  std::uint32_t state_;
};

}  // namespace mpsshim::broker
