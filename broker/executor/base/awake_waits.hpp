// SPDX-License-Identifier: Apache-2.0
// How long waits of clients for the GPU may stay awake, looking again and again on a core that nobody else wants (interposer/channel/wait_plan.hpp):
// by what the broker was asked for (--latency) and by how many sessions are at work. Told to each client in its channel's header.
//
// see() and conclude() are the fault watch's, which looks at everybody's work anyway; limit_us() is for any thread. Free of clocks and the driver.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "proto/latency.hpp"

namespace mpsshim::broker {

class AwakeWaits {  // NOLINT(clang-analyzer-optin.performance.Padding): what workers read is in a line of its own
 public:
  using Clock = std::chrono::steady_clock;

  // A sleeper hears of a kernel's end 30 to 140 us late, so beyond that nothing is won: 0.3 % of such a wait.
  static constexpr std::uint32_t kBalancedUs = 50'000;

  AwakeWaits(proto::Latency latency, unsigned cores) : latency_(latency), cores_(cores) {
    if (latency == proto::Latency::low) limit_us_ = proto::kLowAwakeUs;
    if (latency == proto::Latency::balanced && is_few(1)) limit_us_ = kBalancedUs;
  }

  // In one look: that session has work under way.
  void see(std::uint64_t session) {
    if (latency_ != proto::Latency::balanced || count_ == seen_.size()) return;
    if (std::find(seen_.begin(), seen_.begin() + count_, session) == seen_.begin() + count_) seen_[count_++] = session;
  }
  // The look is over.
  void conclude(Clock::time_point now) {
    if (latency_ != proto::Latency::balanced || now - begin_ < kPeriod) return;
    const bool are_few = is_few(std::max(count_, before_));
    limit_us_.store(are_few ? kBalancedUs : 0, std::memory_order_relaxed);
    before_ = count_;
    count_ = 0;
    begin_ = now;
  }
  [[nodiscard]] std::uint32_t limit_us() const { return limit_us_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::chrono::milliseconds kPeriod{20};

  // Three eighths of the cores: beside each client's thread that waits there are others of it, and the executor's.
  [[nodiscard]] bool is_few(std::size_t sessions) const { return 8 * sessions <= std::size_t{3} * cores_; }

  const proto::Latency latency_;
  const unsigned cores_;
  std::atomic<std::uint32_t> limit_us_{0};            // workers read it at each visit to a ring, so what is written all the time is in other lines
  alignas(64) std::array<std::uint64_t, 64> seen_{};  // in this period; more than that are many, whatever the number of cores
  std::size_t count_ = 0;
  std::size_t before_ = 0;  // in the last one
  Clock::time_point begin_{};
};

}  // namespace mpsshim::broker
