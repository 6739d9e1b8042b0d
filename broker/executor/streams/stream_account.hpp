// SPDX-License-Identifier: Apache-2.0
// The account of one stream: what the driver has been given of it, and what of that has ended.
//
// Two counts. *Positions* number the stream's operations (the progress word holds one): work up to a position has ended when the GPU has
// written it. *Submissions* number driver calls that take a place in the driver's queue, which holds 1,021 before a call blocks its thread:
// at most kCredit are made past the last known progress. Nor are more operations than last some milliseconds (FlightLimit).
// Owned by a StreamQueue and touched by the session's worker alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "broker/executor/chains/flight_limit.hpp"

namespace mpsshim::broker {

inline constexpr std::uint32_t kCredit = 900;

class StreamAccount {
 public:
  // Everything up to `position` has ended.
  StreamAccount(std::uint32_t position, std::uint32_t first_in_flight) : issued_(position), written_(position), limit_(first_in_flight) {
    known_done_.position = position;
  }

  [[nodiscard]] std::uint32_t issued() const { return issued_; }
  [[nodiscard]] std::uint32_t written() const { return written_; }  // position of the last progress write
  [[nodiscard]] std::uint32_t submissions() const { return submissions_; }
  [[nodiscard]] std::size_t longest_chain() const { return limit_.longest_chain(); }

  void issue(std::uint32_t operations) {
    issued_ += operations;
    run_ += operations;
  }
  // What follows is another run: a fence has been issued, which somebody waits for sooner or later.
  void end_run() { last_run_ = std::exchange(run_, 0); }
  void take_back(std::uint32_t position) { issued_ = position; }  // what was issued behind it has been refused
  void submitted(std::uint32_t calls) { submissions_ += calls; }
  // A write of progress at what was issued is on its way.
  void progress_submitted();
  // Many operations between fences.
  [[nodiscard]] bool has_long_runs() const { return std::max(run_, last_run_) > kLongRun; }
  [[nodiscard]] bool is_progress_due() const { return issued_ - written_ >= limit_.progress_interval(); }
  // Whether more may be given to the driver; `completed` is read where that is not known already.
  [[nodiscard]] bool has_credit(bool is_crowded, const std::atomic<std::uint32_t>& completed);

 private:
  struct Written {  // a progress write on its way
    std::uint32_t position = 0;
    std::uint32_t submissions = 0;
    std::uint32_t in_flight = 0;  // then, and when it was: only where the limit learns from it
    FlightLimit::Clock::time_point when{};
  };

  [[nodiscard]] bool is_within_credit() const {
    return submissions_ - known_done_.submissions < kCredit && issued_ - known_done_.position < limit_.operations();
  }
  void learn_progress(std::uint32_t completed);

  static constexpr std::uint32_t kLongRun = 32;

  std::uint32_t issued_;
  std::uint32_t written_;
  std::uint32_t run_ = 0;  // operations since the last fence
  std::uint32_t last_run_ = 0;
  std::uint32_t submissions_ = 0;
  Written known_done_;
  std::deque<Written> under_way_;
  FlightLimit limit_;
  bool lacked_credit_ = false;
};

}  // namespace mpsshim::broker
