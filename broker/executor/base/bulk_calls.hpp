// SPDX-License-Identifier: Apache-2.0
// Short calls of the driver by the thousand (mappings, chunks), by helpers. Whoever makes them one behind the other has the driver's lock again
// before a thread that waits for it has woken up, so a launch of somebody else's may wait for all of them
// (docs/experiments/2026-11-23-attacks-on-time.md).
// So one thread at a time makes such calls, for 100 us, and lets as long go by. A call alone waits for nobody.
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

namespace mpsshim::broker {

class BulkLane {
 private:
  friend class BulkCalls;
  std::mutex mutex_;
};

class BulkCalls {
 public:
  explicit BulkCalls(BulkLane& lane) : lock_(lane.mutex_, std::defer_lock) {}

  // Before each call, where all are made in a loop: the first takes no turn.
  void before_call() {
    if (!std::exchange(is_first_, false)) yield();
  }
  // Between two calls; holding no lock that others need.
  void yield() {
    using Clock = std::chrono::steady_clock;
    if (lock_.owns_lock()) {
      const Clock::duration took = Clock::now() - began_;
      if (took < kSlice) return;
      std::this_thread::sleep_for(std::min<Clock::duration>(took, kLongestPause));
      lock_.unlock();
    }
    lock_.lock();
    began_ = Clock::now();
  }

 private:
  static constexpr std::chrono::microseconds kSlice{100};
  static constexpr std::chrono::milliseconds kLongestPause{5};  // behind one call that was long by itself
  std::unique_lock<std::mutex> lock_;
  std::chrono::steady_clock::time_point began_;
  bool is_first_ = true;
};

}  // namespace mpsshim::broker
