// SPDX-License-Identifier: Apache-2.0
// The short lock that makes one total order of a channel's records. Held for tens of nanoseconds by a launch, so a contender first looks a
// few times; then it sleeps on a futex, because on two cores a spinning contender keeps the holder from finishing.
// Meets the requirements of std::lock_guard. Not recursive, not fair between sleepers.
//
// Leaving is two plain instructions, since every launch pays for it: the store that frees the lock and the look for sleepers need a barrier
// between them, and who wants to sleep makes that one for all threads (membarrier(2), process-wide) behind its mark. So either the one who
// leaves sees the mark, or the sleeper sees the free lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/futex.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer {

class CAPABILITY("mutex") ChannelLock {
 public:
  static constexpr bool kIsAnnotated = true;

  void lock() ACQUIRE() {
    if (!try_lock()) lock_contended();
  }
  bool try_lock() TRY_ACQUIRE(true) {
    std::uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void unlock() RELEASE() {
    state_.store(kFree, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the other half of the sleeper's barrier: for the compiler alone
    if (sleepers_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      proto::futex_wake_one(state_);
  }

 private:
  enum : std::uint32_t { kFree = 0, kHeld = 1 };

  void lock_contended() ACQUIRE();

  std::atomic<std::uint32_t> state_{kFree};
  std::atomic<std::uint32_t> sleepers_{0};  // threads that sleep or are about to
};

}  // namespace mpsshim::interposer
