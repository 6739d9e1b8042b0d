// SPDX-License-Identifier: Apache-2.0
// How many operations of a stream may be in flight: enough to keep the GPU busy while a worker sleeps, and little enough that a quiet window,
// a dead client or a replacement does not wait long, and that a fault finds few of them. Learned from how long operations take to come back:
// between one and four milliseconds is right.
//
// In a crowd (more streams at work than the device has connections) what stands in a connection behind work of its own stream holds up the other
// streams there (docs/experiments/2026-11-21-hardware-connections.md). So a stream of long runs whose operations are not tiny has one chain on the
// GPU, of two milliseconds, and the next one when that has ended; the pause between the two is the worker's, some ten microseconds. It is treated so
// until it has been full once and is known. Of short runs the worker would have to look after each: such a stream has one chain of a millisecond and
// one behind it (docs/experiments/2026-11-24-what-holds-workers-up.md).
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

  void set_crowded(bool is_crowded, bool has_long_runs) {
    const bool may_be_long = is_known() ? operation_time_ >= kNotTiny : has_long_runs;
    if (!is_crowded || !may_be_long)
      chains_ = Chains::many;
    else
      chains_ = has_long_runs ? Chains::one : Chains::two;
  }

  // Another submission may follow while fewer are in flight. With one chain: behind half a chain of copies and single launches, but behind no whole
  // one.
  [[nodiscard]] std::uint32_t operations() const {
    if (chains_ == Chains::many) return operations_;
    const auto chain = static_cast<std::uint32_t>(longest_chain());
    return chains_ == Chains::two ? chain + 2 : std::max(1U, chain / 2);
  }
  // Operations after which progress is written even though more work waits.
  [[nodiscard]] std::uint32_t progress_interval() const { return chains_ == Chains::many ? operations_ / 4 : 1; }
  [[nodiscard]] std::size_t longest_chain() const {
    if (chains_ == Chains::many) return operations_ >= kFirst ? kMaxChain : kLeast / 8;
    if (!is_known()) return kUnknownChain;
    const auto time = chains_ == Chains::one ? kTimeOfOne : kTimeOfTwo;
    return std::clamp<std::size_t>(static_cast<std::size_t>(time / operation_time_), 1, kMaxChain);
  }

  // A stream that was full, with so many operations in flight, has seen their progress so long after it was asked for.
  void learn(Clock::duration took, std::uint32_t in_flight) {
    const Clock::duration sample = took / std::max(1u, in_flight);
    if (chains_ != Chains::many && is_known()) {
      // The time includes what others in the connection hold it up, so the least of late is believed; far more than that is a longer kernel.
      const int share = sample > kLonger * operation_time_ ? 8 : 128;
      operation_time_ = std::max(std::min(sample, operation_time_ + operation_time_ / share), Clock::duration(1));
      return;
    }
    operation_time_ = std::max(sample, Clock::duration(1));
    if (chains_ != Chains::many) return;  // so few in flight say nothing about how many there may be
    if (took > kLong) operations_ = std::max(kLeast, operations_ / 2);
    if (took < kShort) operations_ = std::min(kMost, operations_ * 2);
  }

 private:
  enum class Chains : std::uint8_t { many, two, one };  // of the stream, on the GPU
  [[nodiscard]] bool is_known() const { return operation_time_ != Clock::duration(0); }

  static constexpr std::chrono::microseconds kShort{1'000};
  static constexpr std::chrono::microseconds kLong{4'000};
  static constexpr std::chrono::microseconds kNotTiny{10};  // below, a chain is over before it holds up anybody
  static constexpr std::chrono::microseconds kTimeOfOne{2'000};
  static constexpr std::chrono::microseconds kTimeOfTwo{1'000};
  static constexpr std::size_t kUnknownChain = 32;
  static constexpr int kLonger = 4;
  std::uint32_t operations_;
  Clock::duration operation_time_{0};  // 0: not known yet
  Chains chains_ = Chains::many;
};

}  // namespace mpsshim::broker
