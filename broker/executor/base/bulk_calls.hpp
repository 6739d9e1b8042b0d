// SPDX-License-Identifier: Apache-2.0
// Short calls of the driver by the thousand (mappings, chunks), by helpers. Whoever makes them one behind the other has the driver's lock again
// before a thread that waits for it has woken up, so a launch of somebody else's may wait for all of them
// (docs/experiments/2026-11-23-attacks-on-time.md).
// So one thread at a time makes such calls, for 100 us, and lets as long go by. A call alone waits for nobody. Turns are given in the order of asking:
// a mutex would go to who asks for it again at once, and others wait for tens of milliseconds, up to hundreds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class BulkLane {
 private:
  friend class BulkCalls;
  void take() {
    std::unique_lock lock(mutex_);
    const std::uint64_t mine = asked_++;
    turn_.wait(lock, [&]() REQUIRES(mutex_) { return served_ == mine; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    ++served_;
    turn_.notify_all();
  }

  Mutex mutex_;
  CondVar turn_;
  std::uint64_t asked_ GUARDED_BY(mutex_) = 0;
  std::uint64_t served_ GUARDED_BY(mutex_) = 0;
};

class BulkCalls {
 public:
  explicit BulkCalls(BulkLane& lane) : lane_(lane) {}
  BulkCalls(const BulkCalls&) = delete;
  ~BulkCalls() {
    if (has_lane_) lane_.let_go();
  }

  // Before each call, where all are made in a loop: the first takes no turn.
  void before_call() {
    if (!std::exchange(is_first_, false)) yield();
  }
  // Between two calls; holding no lock that others need.
  void yield() {
    using Clock = std::chrono::steady_clock;
    if (has_lane_) {
      const Clock::duration took = Clock::now() - began_;
      if (took < kSlice) return;
      std::this_thread::sleep_for(std::min<Clock::duration>(took, kLongestPause));
      lane_.let_go();
    }
    lane_.take();
    has_lane_ = true;
    began_ = Clock::now();
  }

 private:
  static constexpr std::chrono::microseconds kSlice{100};
  static constexpr std::chrono::milliseconds kLongestPause{5};  // behind one call that was long by itself
  BulkLane& lane_;
  bool has_lane_ = false;
  std::chrono::steady_clock::time_point began_;
  bool is_first_ = true;
};

}  // namespace mpsshim::broker
