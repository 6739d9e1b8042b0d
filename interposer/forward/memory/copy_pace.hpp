// SPDX-License-Identifier: Apache-2.0
// How long a copy between device memory and pinned memory will take, reckoned from how fast the last one in its direction went. A thread that
// waits for one sleeps until shortly before that and then looks: being woken costs some 0.2 ms (docs/experiments/2026-11-22-long-waits.md). A wrong
// guess costs looks for a sixteenth of the copy's time; the wait ends as it would without.
// Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace mpsshim::interposer::forward {

class CopyPace {
 public:
  static constexpr std::uint64_t kLeastBytes = 64ull << 20;  // over in a millisecond on a fast bus; less is not worth the clock

  // 0: unknown, or a copy too short to ask for.
  [[nodiscard]] std::uint64_t expected_us(std::uint64_t bytes) const {
    const double bytes_per_us = bytes_per_us_.load(std::memory_order_relaxed);
    return bytes >= kLeastBytes && bytes_per_us > 0 ? static_cast<std::uint64_t>(static_cast<double>(bytes) / bytes_per_us) : 0;
  }
  // The wait for a copy of so many bytes took so long, other work in front of it included.
  void learn(std::uint64_t bytes, std::chrono::microseconds took) {
    if (bytes < kLeastBytes || took.count() <= 0) return;
    bytes_per_us_.store(static_cast<double>(bytes) / static_cast<double>(took.count()), std::memory_order_relaxed);
  }

 private:
  std::atomic<double> bytes_per_us_{0};
};

}  // namespace mpsshim::interposer::forward
