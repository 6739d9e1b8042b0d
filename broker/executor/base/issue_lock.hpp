// SPDX-License-Identifier: Apache-2.0
// One thread at a time hands work to a context of the driver. The executor's context has a lock of its own in the driver, on which contending
// threads sleep and wake each other: two threads that launch alternately get a quarter of what one gets
// (docs/experiments/2026-11-21-words-by-kernels.md). A green context has none, and is not to be used by two threads at once (cuGreenCtxCreate): what
// names it or one of its streams, or makes it current, is done under this. Not so, where clients have some: instantiating and launching a graph some
// of whose nodes are of another green context than the stream.
// What is held here lasts a microsecond, so waiting means spinning, and workers decode and fill graphs side by side. (Longer in a green context
// alone: its graphs are made in quiet windows, its streams at their session's wish.) Never held around a call that may wait for the GPU; streams stay
// within their credit for that reason too.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "proto/futex.hpp"

namespace mpsshim::broker {

class IssueLock {
 public:
  void lock() {
    if (taken_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      await_and_time();
  }
  void unlock() { taken_.store(false, std::memory_order_release); }
  // About how long the calling thread has waited for such locks since it asked last.
  [[nodiscard]] static std::chrono::nanoseconds take_waited() { return kWaitsToOneTimed * std::exchange(timed, std::chrono::nanoseconds(0)); }

 private:
  using Clock = std::chrono::steady_clock;

  // The end of a wait is read by the lock's holder, whom all others wait for: so few are timed.
  void await_and_time() {
    if (++waits % kWaitsToOneTimed != 0) return await();
    const Clock::time_point start = Clock::now();
    await();
    timed += Clock::now() - start;
  }
  void await() {
    do {
      for (unsigned spins = 1; taken_.load(std::memory_order_relaxed); ++spins) {
        if (spins % kSpinsBeforeYield == 0) std::this_thread::yield();  // its holder may have lost the core
        proto::cpu_relax();
      }
    } while (taken_.exchange(true, std::memory_order_acquire));
  }

  static constexpr unsigned kWaitsToOneTimed = 16;
  static inline thread_local unsigned waits = 0;
  static inline thread_local std::chrono::nanoseconds timed{0};
  static constexpr unsigned kSpinsBeforeYield = 256;
  alignas(64) std::atomic<bool> taken_{false};
};

}  // namespace mpsshim::broker
