// SPDX-License-Identifier: Apache-2.0
// The one way to wait for the broker: for a reply, a fence, room in the ring, a reply slot. Every wait has a reason (for the log and the
// trace), looks at the session's state and, every 20 ms, at the connection. So a broker that quits or an executor that is replaced ends
// every wait: none can hang. How it waits is a WaitPlan, whose style CUDA lets a program choose for waits for the GPU (CU_CTX_SCHED_*).
// Any thread. The shared words it looks at are trusted: a broken broker can make this process wait for the 20 ms steps only, not for ever,
// because it dies with its connection.
#pragma once

#include <atomic>
#include <cstdint>

#include "interposer/cancellation.hpp"
#include "interposer/channel/wait_plan.hpp"
#include "proto/channel.hpp"
#include "proto/futex.hpp"

namespace mpsshim::interposer {

enum class WaitEnd : std::uint8_t {
  ready,   // what was waited for is there
  moved,   // SessionState::moved, or on_trial: recover, then decide again
  failed,  // SessionState::failed: session_error of the channel header is the answer, now and later
  gone,    // the control process hung up
};

// Tells whether the other end of the connection is there. A function pointer and a state, so that channel code needs no socket.
struct PeerWatch {
  bool (*has_hung_up)(const void* state) = nullptr;
  const void* state = nullptr;
};

class Wait {
 public:
  static constexpr std::uint64_t kStepUs = 20'000;
  static constexpr std::uint64_t kLogAfterUs = 10'000'000;

  // `reason` is a string literal that completes "waiting for ...".
  Wait(const char* reason, const proto::ChannelHeader& header, PeerWatch peer, WaitPlan plan = WaitStyle::automatic)
      : reason_(reason), header_(header), peer_(peer), plan_(plan) {}

  // `ready()` looks once; `sleep(timeout_us)` sleeps until something may have changed, at most so long.
  template <typename Ready, typename Sleep>
  [[nodiscard]] WaitEnd until(Ready&& ready, Sleep&& sleep) {
    if (ready()) return WaitEnd::ready;
    const NoCancellation hold;
    begin();
    for (;;) {
      while (plan_.style != WaitStyle::sleep) {
        for (int look = 0; look < looks_; ++look) {
          proto::cpu_relax();
          if (ready()) return end(WaitEnd::ready);
        }
        if (!keeps_looking()) break;
        if (const WaitEnd found = look_around(); found != WaitEnd::ready) return end(found);
      }
      note_sleep();
      sleep(plan_.sleep_us(now_us_ - started_us_, kStepUs));
      if (ready()) return end(WaitEnd::ready);
      now_us_ = clock_us();
      if (const WaitEnd found = look_around(); found != WaitEnd::ready) return end(found);
    }
  }

  // For so long it has looked before it slept, or the wait was over.
  [[nodiscard]] std::uint64_t awake_for_us() const { return slept_us_ - started_us_; }
  [[nodiscard]] bool has_slept() const { return slept_; }

  // The calling thread has just woken the executor: what it waits for next takes a sleeper's way back to its core longer.
  static void note_wake();

  // Where the style of the calling thread's waits for the GPU comes from (its current context); automatic without a source.
  static void set_style_source(WaitStyle (*source)()) { style_source_.store(source, std::memory_order_relaxed); }
  [[nodiscard]] static WaitStyle style_of_thread() {
    WaitStyle (*const source)() = style_source_.load(std::memory_order_relaxed);
    return source != nullptr ? source() : WaitStyle::automatic;
  }

 private:
  // Some 2 us. Beyond the budget eight times as many: what the threads of a core share is then the other one's.
  static constexpr int kLooksPerClock = 32;
  static constexpr int kPatientLooksPerClock = 256;

  [[nodiscard]] static std::uint64_t clock_us();
  void begin();
  // For so long the wait may stay awake.
  [[nodiscard]] std::uint64_t awake_us() const;
  // False once it is time to sleep. Yields the core where the style says so.
  [[nodiscard]] bool keeps_looking();
  // WaitEnd::ready: nothing speaks against waiting on.
  [[nodiscard]] WaitEnd look_around();
  WaitEnd end(WaitEnd found);
  void note_sleep() {
    if (!slept_) slept_us_ = now_us_;
    slept_ = true;
  }

  static inline std::atomic<WaitStyle (*)()> style_source_{nullptr};  // set by the code that knows contexts

  const char* reason_;
  const proto::ChannelHeader& header_;
  PeerWatch peer_;
  WaitPlan plan_;
  int looks_ = kLooksPerClock;
  bool slept_ = false;
  bool logged_ = false;
  bool was_late_ = false;         // at a look: others had the core
  SpinBudget* budget_ = nullptr;  // the calling thread's; automatic waits only
  std::uint64_t budget_us_ = 0;
  std::uint64_t started_us_ = 0;
  std::uint64_t now_us_ = 0;
  std::uint64_t looked_us_ = 0;
  std::uint64_t slept_us_ = 0;  // since when it has slept; once it is over, until when it looked
};

}  // namespace mpsshim::interposer
