// SPDX-License-Identifier: Apache-2.0
// Which executor streams run long work, and which of them get no new work while a quiet window is wanted.
// *Long*: the oldest unfinished work is older than a millisecond, or its function's last run was. A held stream costs its session something
// only while it stands idle; at most half of each second may be taken from a session that way, then its streams are let go. For a call that has
// waited longer than a second it is half of that time: kernels of seconds that follow each other on several streams are caught as well.
// *Hopeless*: work that has run for longer than that half. No window comes before its end, so until then nobody else is held for one.
// *Very long*: a function's last run was longer than 100 ms. Its launches are issued to a stream one at a time, always: whoever needs a
// window waits for the one that runs, and not for those queued behind it. The stream loses what a worker takes to look again.
//
// Threads: the window's thread scans and decides; the fault watch, which looks at all streams anyway, lets it observe while no window is
// wanted; workers read `holds` and call note_launch for streams they own.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "broker/executor/window/window_job.hpp"
#include "broker/progress_table.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class StreamWatch {
 public:
  using Clock = std::chrono::steady_clock;
  struct Scan {
    bool any_busy = false;
    bool any_long = false;
  };
  struct Blocker {
    std::uint64_t session = 0;
    Clock::time_point since{};  // when its work in flight was first seen
  };

  StreamWatch(const ProgressTable& progress, const WindowLimits& limits) : progress_(progress), limits_(limits) {}
  StreamWatch(const StreamWatch&) = delete;

  // Words from this index on were never used: a scan goes no further.
  void set_used(std::function<std::uint32_t()> used) { used_ = std::move(used); }

  // --- workers ---
  void note_launch(std::uint32_t index, const void* function) { stream_[index].function.store(slot_of(function), std::memory_order_relaxed); }
  [[nodiscard]] bool holds(std::uint32_t index, const void* function) {
    Stream& stream = stream_[index];
    if (stream.held.load(std::memory_order_relaxed)) return true;
    if (function == nullptr) return false;
    const Length length = length_[slot_of(function)].load(std::memory_order_relaxed);
    if (length == Length::small) [[likely]] return false;
    if (length == Length::very_long && is_busy(index)) return true;
    if (!holds_functions_.load(std::memory_order_relaxed) || stream.is_let_go.load(std::memory_order_relaxed)) return false;
    if (stream.has_turn.load(std::memory_order_relaxed)) {
      stream.has_turn.store(false, std::memory_order_relaxed);
      return false;
    }
    stream.waits.store(true, std::memory_order_relaxed);
    return true;
  }

  [[nodiscard]] bool is_very_long(const void* function) const {
    return length_[slot_of(function)].load(std::memory_order_relaxed) == Length::very_long;
  }

  // --- any thread ---
  void observe(Clock::time_point now);

  // --- the window's thread ---
  // While pressing, long streams are held; otherwise nothing is. `waited`: how long the oldest call has waited.
  void set_pressing(bool pressing, Clock::duration waited = {});
  [[nodiscard]] Scan scan(Clock::time_point now);
  // A window has been. Whoever was held for it has a turn before the next one, even if calls without end want windows.
  void give_turns();
  [[nodiscard]] std::uint32_t used() const { return used_ ? used_() : kProgressStreams; }
  [[nodiscard]] bool is_busy(std::uint32_t index) const;
  // This stream's work did not end in a window that was about to open.
  void found_long(std::uint32_t index, Clock::time_point since);
  // Who has had work in flight longest, longer than long_work; sessions other than `but` where that is not 0.
  [[nodiscard]] std::optional<Blocker> blocker(Clock::time_point now, std::uint64_t but) const;

 private:
  enum class Length : std::uint8_t { small, is_long, very_long };  // of a function's last run
  static constexpr std::uint32_t kFunctionSlots = 4096;  // functions are told apart by a hash; a rare mix-up costs a moment's hold

  struct alignas(64) Stream {
    std::atomic<bool> held{false};
    std::atomic<bool> is_let_go{false};  // its session has been held long enough for this second
    std::atomic<bool> waits{false};      // a worker found its next launch to be of a long function
    std::atomic<bool> has_turn{false};   // it was held for a window that has been: one launch is let through before the next
    std::atomic<std::uint32_t> function{0};
    bool waited = false;  // `waits` was set at a scan since the last window
    std::uint32_t completed = 0;
    Clock::time_point since{};           // the word stands at `completed` since then at the latest; zero: idle
  };
  struct Account {  // of a session
    Clock::time_point began{};
    Clock::duration taken{};
    bool is_delayed = false;
    bool is_let_go = false;
  };

  static std::uint32_t slot_of(const void* function) {
    if (function == nullptr) return 0;
    return 1 + static_cast<std::uint32_t>((reinterpret_cast<std::uintptr_t>(function) * 0x9e37'79b9'7f4a'7c15) >> 52) % (kFunctionSlots - 1);
  }
  // True if it is long.
  [[nodiscard]] Scan scan_locked(Clock::time_point now) REQUIRES(mutex_);
  [[nodiscard]] Length length_of(Clock::duration run) const;
  [[nodiscard]] bool look(std::uint32_t index, Clock::time_point now) REQUIRES(mutex_);
  void end_stretch(Stream& stream) REQUIRES(mutex_);
  void settle_accounts(Clock::time_point now) REQUIRES(mutex_);
  [[nodiscard]] Clock::duration share_of(Clock::duration time) const;

  const ProgressTable& progress_;
  const WindowLimits& limits_;
  std::function<std::uint32_t()> used_;
  std::array<Stream, kProgressStreams> stream_{};
  std::array<std::atomic<Length>, kFunctionSlots> length_{};
  std::atomic<bool> pressing_{false};
  std::atomic<bool> holds_functions_{false};  // pressing, and nothing is hopeless
  mutable Mutex mutex_;                       // what follows, and what is not atomic in stream_
  std::map<std::uint64_t, Account> accounts_ GUARDED_BY(mutex_);
  Clock::duration period_ GUARDED_BY(mutex_){};       // of accounts, while pressing
  bool is_hopeless_ GUARDED_BY(mutex_) = false;       // at the last scan
  Clock::time_point last_scan_ GUARDED_BY(mutex_){};  // while pressing
  Clock::time_point last_look_ GUARDED_BY(mutex_){};
};

}  // namespace mpsshim::broker
