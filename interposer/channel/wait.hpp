// SPDX-License-Identifier: Apache-2.0
// The one way to wait for the broker: for a reply, a fence, room in the ring, a reply slot. Every wait has a reason (for the log and the
// trace), looks at the session's state and, every 20 ms, at the connection. So a broker that quits or an executor that is replaced ends
// every wait: none can hang. How it waits is a WaitStyle, which CUDA lets a program choose for waits for the GPU (CU_CTX_SCHED_*).
// Any thread. The shared words it looks at are trusted: a broken broker can make this process wait for the 20 ms steps only, not for ever,
// because it dies with its connection.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "proto/channel.hpp"
#include "proto/futex.hpp"

namespace mpsshim::interposer {

enum class WaitEnd : std::uint8_t {
  ready,   // what was waited for is there
  moved,   // SessionState::moved: recover, then decide again
  failed,  // SessionState::failed: session_error of the channel header is the answer, now and later
  gone,    // the control process hung up
};

enum class WaitStyle : std::uint8_t {
  automatic,  // spins for a moment, yields for the rest of a budget (SpinBudget), then sleeps; yields again when its end is about due
  spin,       // never sleeps (CU_CTX_SCHED_SPIN); on one or two cores it yields, or the executor would not get on
  yield,      // never sleeps, gives its core away between looks (CU_CTX_SCHED_YIELD)
  sleep,      // sleeps at once (CU_CTX_SCHED_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC)
};

// How to wait for the GPU, and for how long that will be, as far as anybody can tell.
struct WaitPlan {
  WaitPlan(WaitStyle how, std::uint64_t expected = 0) : style(how), expected_us(expected) {}  // NOLINT: a style alone is a plan, too
  WaitStyle style;
  std::uint64_t expected_us;  // 0: not known
};

// What comes after some looks in vain.
enum class WaitStep : std::uint8_t { look, yield, sleep };

// Tells whether the other end of the connection is there. A function pointer and a state, so that channel code needs no socket.
struct PeerWatch {
  bool (*has_hung_up)(const void* state) = nullptr;
  const void* state = nullptr;
};

class Wait {
 public:
  static constexpr std::uint64_t kStepUs = 20'000;
  static constexpr std::uint64_t kLogAfterUs = 10'000'000;
  // Twice what a short kernel takes from its launch on. A wait that is not over by then may be for a worker of the executor that has no core, where
  // more clients wait than there are cores: they give theirs away. Yielding earlier made the waits of a single client longer (docs/measurements.md).
  static constexpr std::uint64_t kSpinUs = 20;

  // What is expected to take less is waited for as if nobody knew: a thread wakes up some 0.1 ms late, as much as such a wait's margin.
  static constexpr std::uint64_t kLeastExpectedUs = 2'000;

  // A wait with that plan and that budget has lasted for so long.
  [[nodiscard]] static WaitStep next_step(const WaitPlan& plan, std::uint64_t waited_us, std::uint64_t budget_us) {
    switch (plan.style) {
      case WaitStyle::automatic:
        if (waited_us >= budget_us) return is_about_due(plan, waited_us) ? WaitStep::yield : WaitStep::sleep;
        return waited_us < kSpinUs ? WaitStep::look : WaitStep::yield;
      case WaitStyle::spin: return WaitStep::look;
      case WaitStyle::yield: return WaitStep::yield;
      case WaitStyle::sleep: break;
    }
    return WaitStep::sleep;
  }
  // How long a wait with that plan sleeps after so long: until its end is about due, kStepUs at most.
  [[nodiscard]] static std::uint64_t sleep_us(const WaitPlan& plan, std::uint64_t waited_us) {
    const std::uint64_t due_us = plan.expected_us - margin_us(plan);
    return plan.expected_us >= kLeastExpectedUs && waited_us < due_us ? std::min(kStepUs, due_us - waited_us) : kStepUs;
  }

  // `reason` is a string literal that completes "waiting for ...".
  Wait(const char* reason, const proto::ChannelHeader& header, PeerWatch peer, WaitPlan plan = WaitStyle::automatic)
      : reason_(reason), header_(header), peer_(peer), plan_(plan) {}

  // `ready()` looks once; `sleep(timeout_us)` sleeps until something may have changed, at most so long.
  template <typename Ready, typename Sleep>
  [[nodiscard]] WaitEnd until(Ready&& ready, Sleep&& sleep) {
    if (ready()) return WaitEnd::ready;
    begin();
    for (;;) {
      while (plan_.style != WaitStyle::sleep) {
        for (int look = 0; look < kLooksPerClock; ++look) {
          proto::cpu_relax();
          if (ready()) return end(WaitEnd::ready);
        }
        if (!keeps_looking()) break;
        if (const WaitEnd found = look_around(); found != WaitEnd::ready) return end(found);
      }
      slept_ = true;
      sleep(sleep_us(plan_, now_us_ - started_us_));
      if (ready()) return end(WaitEnd::ready);
      now_us_ = clock_us();
      if (const WaitEnd found = look_around(); found != WaitEnd::ready) return end(found);
    }
  }

  // Where the style of the calling thread's waits for the GPU comes from (its current context); automatic without a source.
  static void set_style_source(WaitStyle (*source)()) { style_source_.store(source, std::memory_order_relaxed); }
  [[nodiscard]] static WaitStyle style_of_thread() {
    WaitStyle (*const source)() = style_source_.load(std::memory_order_relaxed);
    return source != nullptr ? source() : WaitStyle::automatic;
  }

 private:
  static constexpr int kLooksPerClock = 32;

  // For so long before and after its expected end the end of a wait is about due.
  [[nodiscard]] static std::uint64_t margin_us(const WaitPlan& plan) { return plan.expected_us / 32; }
  [[nodiscard]] static bool is_about_due(const WaitPlan& plan, std::uint64_t waited_us) {
    return plan.expected_us >= kLeastExpectedUs && waited_us + margin_us(plan) >= plan.expected_us && waited_us <= plan.expected_us + margin_us(plan);
  }
  [[nodiscard]] static std::uint64_t clock_us();
  void begin();
  // False once it is time to sleep. Yields the core where the style says so.
  [[nodiscard]] bool keeps_looking();
  // WaitEnd::ready: nothing speaks against waiting on.
  [[nodiscard]] WaitEnd look_around();
  WaitEnd end(WaitEnd found);

  static inline std::atomic<WaitStyle (*)()> style_source_{nullptr};  // set by the code that knows contexts

  const char* reason_;
  const proto::ChannelHeader& header_;
  PeerWatch peer_;
  WaitPlan plan_;
  bool slept_ = false;
  bool logged_ = false;
  std::uint64_t budget_us_ = 0;
  std::uint64_t started_us_ = 0;
  std::uint64_t now_us_ = 0;
  std::uint64_t looked_us_ = 0;
};

// How long an automatic wait keeps looking before it sleeps: at most 50 us where cores can be spared, 20 on three or four, 2 on one or two. Waits
// that last long in spite of it halve the budget, short ones double it again: threads that wait for long kernels soon do not spin at all.
class SpinBudget {
 public:
  static constexpr std::uint64_t kLeastUs = 2;

  explicit constexpr SpinBudget(std::uint64_t most_us) : most_us_(most_us), us_(most_us) {}
  // For the cores this thread may run on.
  [[nodiscard]] static std::uint64_t most_us_for(int cores) { return cores <= 2 ? kLeastUs : cores <= 4 ? 20 : 50; }

  [[nodiscard]] std::uint64_t us() const { return us_; }
  // A wait that was not over at the first look took so long.
  void learn(std::uint64_t waited_us);

 private:
  std::uint64_t most_us_;
  std::uint64_t us_;
};

}  // namespace mpsshim::interposer
