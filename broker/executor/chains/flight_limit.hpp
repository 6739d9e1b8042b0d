// SPDX-License-Identifier: Apache-2.0
// How many operations of a stream may be in flight: enough to keep the GPU busy while a worker sleeps, and little enough that a quiet window,
// a dead client or a replacement does not wait long, and that a fault finds few of them. Learned from how long operations take to come back:
// between one and four milliseconds is right.
//
// In a crowd (more streams at work than the device has connections) a stream is given its next chain when what it has on the GPU has ended or is
// about to: what stands in a connection behind work of its own stream holds up the other streams there
// (docs/experiments/2026-11-21-hardware-connections.md). So any number of streams run side by side with few connections. Streams of tiny operations
// are excepted, once that is known of them: their chains are over before they hold up anybody.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "broker/executor/chains/chain_graph.hpp"

namespace mpsshim::broker {

class FlightLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint32_t kMost = 1024;
  static constexpr std::uint32_t kFirst = 128;
  static constexpr std::uint32_t kLeast = 64;

  explicit FlightLimit(std::uint32_t first = kFirst) : operations_(first) {}

  // `run`: operations that wait behind one another. A short run says nothing of the length of operations, and needs no limit.
  void set_crowded(bool is_crowded, std::size_t run) {
    const bool is_tiny = operation_time_ != Clock::duration(0) ? operation_time_ < kNotTiny : run <= kShortRun;
    is_crowded_ = is_crowded && !is_tiny;
  }
  [[nodiscard]] bool is_crowded() const { return is_crowded_; }

  // Whether more may follow where `in_flight` operations have not come back. The clock is read only where it matters.
  [[nodiscard]] bool admits(std::uint32_t in_flight) const {
    return is_crowded_ ? in_flight == 0 || (admits_light(in_flight) && Clock::now() + kAhead >= due_) : in_flight < operations_;
  }
  // The same for what stands in nobody's way: a record of an event.
  [[nodiscard]] bool admits_light(std::uint32_t in_flight) const { return in_flight < (is_crowded_ ? longest_chain() + 2 : operations_); }
  // Operations after which progress is written even though more work waits.
  [[nodiscard]] std::uint32_t progress_interval() const { return is_crowded_ ? 1 : operations_ / 4; }
  // From so many in flight on it is worth knowing how long they take.
  [[nodiscard]] std::uint32_t worth_learning() const { return is_crowded_ ? kShortRun : (operations_ + 1) / 2; }
  [[nodiscard]] std::size_t longest_chain() const {
    if (!is_crowded_ || operation_time_ == Clock::duration(0)) return operations_ >= kFirst ? kMaxChain : kLeast / 8;
    return std::clamp<std::size_t>(static_cast<std::size_t>(kChainTime / operation_time_), 1, kMaxChain);
  }

  // In a crowd: so many more launches are on their way.
  void launched(std::uint32_t launches, Clock::time_point now) {
    // Where nobody knows how long they take, they have to end first.
    due_ = operation_time_ == Clock::duration(0) ? Clock::time_point::max() : std::max(now, due_) + launches * operation_time_;
  }
  // A stream that was full, with so many operations in flight, has seen their progress so long after it was asked for, or after what was in front of
  // them came back.
  void learn(Clock::duration took, std::uint32_t in_flight) {
    const Clock::duration sample = took / std::max(1u, in_flight);
    if (is_crowded_) return learn_in_crowd(sample);
    operation_time_ = sample;
    if (took > kLong) operations_ = std::max(kLeast, operations_ / 2);
    if (took < kShort) operations_ = std::min(kMost, operations_ * 2);
  }

 private:
  static constexpr std::chrono::microseconds kShort{1'000};
  static constexpr std::chrono::microseconds kLong{4'000};
  static constexpr std::chrono::microseconds kNotTiny{10};  // below, a chain is over before it holds up anybody
  static inline const std::chrono::microseconds kChainTime{getenv("X_CHAIN") ? atoi(getenv("X_CHAIN")) : 2'000};
  static inline const std::chrono::microseconds kAhead{getenv("X_AHEAD") ? atoi(getenv("X_AHEAD")) : 100};  // a worker that waits for a stream's credit looks as often
  static constexpr std::size_t kShortRun = kLongestExactChain;
  static constexpr int kLonger = 4;

  // The time includes what others in the connection hold it up, so the least of late is believed; far more than that is a longer kernel.
  void learn_in_crowd(Clock::duration sample) {
    if (operation_time_ == Clock::duration(0)) {
      operation_time_ = sample;
      due_ = {};
      return;
    }
    const int share = sample > kLonger * operation_time_ ? 8 : 128;
    operation_time_ = std::min(sample, operation_time_ + operation_time_ / share);
  }

  std::uint32_t operations_;
  Clock::duration operation_time_{0};  // 0: not known
  bool is_crowded_ = false;
  Clock::time_point due_{};  // in a crowd: the end of what is on its way, by what operations took
};

}  // namespace mpsshim::broker
