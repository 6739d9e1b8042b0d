// SPDX-License-Identifier: Apache-2.0
// Whether there are more threads that want to run than cores: told by those that stood runnable without one. Threads that look often take a core from
// somebody at each look then, so they look more rarely (docs/scheduling.md, "Busy processors").
#pragma once

#include <atomic>
#include <chrono>

#include "proto/segment.hpp"

namespace mpsshim::broker {

// How long a thread has stood runnable without a core, as the kernel counts it (/proc/thread-self/schedstat). Of the thread that made it; where the
// kernel does not count it, nothing.
class RunDelay {
 public:
  RunDelay();
  // Since the last call.
  [[nodiscard]] std::chrono::nanoseconds take();

 private:
  [[nodiscard]] std::chrono::nanoseconds read() const;

  proto::FileDescriptor file_;
  std::chrono::nanoseconds taken_{0};
};

class CorePressure {
 public:
  using Clock = std::chrono::steady_clock;

  // A thread that had much to do stood so long without a core, of that time.
  void note(Clock::time_point now, Clock::duration delay, Clock::duration all) {
    if (delay >= all / kLeastShare) until_.store(now + kCounts, std::memory_order_relaxed);
  }
  [[nodiscard]] bool is_high(Clock::time_point now) const { return now < until_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kLeastShare = 10;
  static constexpr std::chrono::milliseconds kCounts{50};

  std::atomic<Clock::time_point> until_{Clock::time_point{}};
};

}  // namespace mpsshim::broker
