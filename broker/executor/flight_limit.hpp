// SPDX-License-Identifier: Apache-2.0
// How many operations of a stream may be in flight: enough to keep the GPU busy while a worker sleeps, and little enough that a quiet window,
// a dead client or a replacement does not wait long, that a fault finds few of them, and that many streams' kernels do not fill the queues
// they share. Learned from how long operations take to come back: between one and four milliseconds is right.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "broker/executor/chain.hpp"

namespace mpsshim::broker {

class FlightLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint32_t kMost = 1024;
  static constexpr std::uint32_t kLeast = 64;

  [[nodiscard]] std::uint32_t operations() const { return operations_; }
  // Operations after which progress is written even though more work waits.
  [[nodiscard]] std::uint32_t progress_interval() const { return operations_ / 4; }
  [[nodiscard]] std::size_t longest_chain() const { return std::min<std::size_t>(kMaxChain, operations_ / 8); }

  // A stream that was full has seen progress so long after it was asked for.
  void learn(Clock::duration took) {
    if (took > kLong) operations_ = std::max(kLeast, operations_ / 2);
    if (took < kShort) operations_ = std::min(kMost, operations_ * 2);
  }

 private:
  static constexpr std::chrono::microseconds kShort{1'000};
  static constexpr std::chrono::microseconds kLong{4'000};
  std::uint32_t operations_ = kMost;
};

}  // namespace mpsshim::broker
