// SPDX-License-Identifier: Apache-2.0
// How many operations of a stream may be in flight: enough to keep the GPU busy while a worker sleeps, and little enough that a quiet window,
// a dead client or a replacement does not wait long, and that a fault finds few of them. Learned from how long operations take to come back:
// between one and four milliseconds is right.
//
// In a crowd (more streams at work than the device has connections) a stream whose operations are not tiny has one chain on the GPU and one
// behind it, no more: what stands in a connection behind work of its own stream holds up the other streams there
// (docs/experiments/2026-11-21-hardware-connections.md).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "broker/executor/chains/chain_graph.hpp"

namespace mpsshim::broker {

class FlightLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint32_t kMost = 1024;
  static constexpr std::uint32_t kFirst = 128;
  static constexpr std::uint32_t kLeast = 64;

  explicit FlightLimit(std::uint32_t first = kFirst) : operations_(first) {}

  void set_crowded(bool is_crowded) { two_chains_ = is_crowded && operation_time_ >= kNotTiny; }

  // Another chain may follow while fewer are in flight.
  [[nodiscard]] std::uint32_t operations() const { return two_chains_ ? static_cast<std::uint32_t>(longest_chain()) + 2 : operations_; }
  // Operations after which progress is written even though more work waits.
  [[nodiscard]] std::uint32_t progress_interval() const { return two_chains_ ? 1 : operations_ / 4; }
  [[nodiscard]] std::size_t longest_chain() const {
    if (!two_chains_) return operations_ >= kFirst ? kMaxChain : kLeast / 8;
    return std::clamp<std::size_t>(static_cast<std::size_t>(kChainTime / operation_time_), 1, kMaxChain);
  }

  // A stream that was full, with so many operations in flight, has seen their progress so long after it was asked for.
  void learn(Clock::duration took, std::uint32_t in_flight) {
    const Clock::duration sample = took / std::max(1u, in_flight);
    if (two_chains_) {
      // The time includes what others in the connection hold it up, so the least of late is believed; far more than that is a longer kernel.
      const int share = sample > kLonger * operation_time_ ? 8 : 128;
      operation_time_ = std::min(sample, operation_time_ + operation_time_ / share);
      return;
    }
    operation_time_ = sample;
    if (took > kLong) operations_ = std::max(kLeast, operations_ / 2);
    if (took < kShort) operations_ = std::min(kMost, operations_ * 2);
  }

 private:
  static constexpr std::chrono::microseconds kShort{1'000};
  static constexpr std::chrono::microseconds kLong{4'000};
  static constexpr std::chrono::microseconds kNotTiny{10};  // below, a chain is over before it holds up anybody
  static constexpr std::chrono::microseconds kChainTime{1'000};
  static constexpr int kLonger = 4;
  std::uint32_t operations_;
  Clock::duration operation_time_{0};
  bool two_chains_ = false;
};

}  // namespace mpsshim::broker
