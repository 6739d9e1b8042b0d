// SPDX-License-Identifier: Apache-2.0
// The short lock that makes one total order of a channel's records. Held for tens of nanoseconds by a launch, so a contender first looks a
// few times; then it sleeps on a futex, because on two cores a spinning contender keeps the holder from finishing.
// Meets the requirements of std::lock_guard. Not recursive, not fair between sleepers.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/futex.hpp"

namespace mpsshim::interposer {

class ChannelLock {
 public:
  void lock() {
    std::uint32_t expected = kFree;
    if (state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) return;
    lock_contended();
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kHeldWithSleepers) proto::futex_wake_one(state_);
  }

 private:
  enum : std::uint32_t { kFree = 0, kHeld = 1, kHeldWithSleepers = 2 };
  static constexpr int kLooks = 100;  // about 1 us of pauses: longer than a record takes to write
  static constexpr std::uint64_t kSleepUs = 20'000;

  void lock_contended() {
    for (int look = 0; look < kLooks; ++look) {
      std::uint32_t expected = kFree;
      if (state_.load(std::memory_order_relaxed) == kFree &&
          state_.compare_exchange_weak(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) {
        return;
      }
      proto::cpu_relax();
    }
    // From here on the lock is taken as "with sleepers": the one who leaves cannot know whether others still sleep.
    while (state_.exchange(kHeldWithSleepers, std::memory_order_acquire) != kFree) {
      proto::futex_wait(state_, kHeldWithSleepers, kSleepUs);
    }
  }

  std::atomic<std::uint32_t> state_{kFree};
};

}  // namespace mpsshim::interposer
