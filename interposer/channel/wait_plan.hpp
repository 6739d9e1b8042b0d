// SPDX-License-Identifier: Apache-2.0
// How a wait goes on: when it looks, when it gives its core away, when it sleeps and for how long. Decisions only; Wait (wait.hpp) acts on them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mpsshim::interposer {

enum class WaitStyle : std::uint8_t {
  automatic,  // looks for a budget (SpinBudget), and for longer where that is allowed (ChannelHeader::awake_us) and nobody wants its core
              // (CoreDemand); then sleeps, and looks again when its end is about due
  spin,       // never sleeps (CU_CTX_SCHED_SPIN); on one or two cores it yields, or the executor would not get on
  yield,      // never sleeps, gives its core away between looks (CU_CTX_SCHED_YIELD)
  sleep,      // sleeps at once (CU_CTX_SCHED_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC)
};

// What comes after some looks in vain.
enum class WaitStep : std::uint8_t { look, yield, sleep };

// A style, and how long the wait will be, as far as anybody can tell.
struct WaitPlan {
  // Twice what a short kernel takes from its launch on. A wait that is not over by then may be for a worker of the executor that has no core, where
  // many clients wait: they give theirs away. Yielding earlier made the waits of a single client longer
  // (docs/experiments/2026-11-22-fourteen-clients.md).
  static constexpr std::uint64_t kSpinUs = 20;
  // What is expected to take less is waited for as if nobody knew: a thread wakes up some 0.1 ms late, as much as such a wait's margin.
  static constexpr std::uint64_t kLeastExpectedUs = 2'000;

  constexpr WaitPlan(WaitStyle how, std::uint64_t expected = 0) : style(how), expected_us(expected) {}  // NOLINT: a style alone is a plan, too

  // The wait has lasted for so long, and may keep looking for `budget_us`; for the GPU also for `awake_us`, which is 0 where many sessions are at
  // work. Whoever gives its core to a program that computes has it again a slice of that one's later, some milliseconds
  // (docs/experiments/2026-11-28-cores-given-away.md): so in the budget that is done for the sake of a crowd alone.
  [[nodiscard]] constexpr WaitStep next_step(std::uint64_t waited_us, std::uint64_t budget_us, std::uint64_t awake_us = 0,
                                             bool is_core_wanted = false) const {
    const bool may_look = waited_us < budget_us || (is_for_gpu && !is_core_wanted && waited_us < awake_us);
    switch (style) {
      case WaitStyle::automatic:
        if (!may_look) return is_about_due(waited_us) ? WaitStep::yield : WaitStep::sleep;
        if (waited_us < kSpinUs) return WaitStep::look;
        return waited_us < budget_us && (awake_us > 0 || is_core_wanted) ? WaitStep::look : WaitStep::yield;
      case WaitStyle::spin: return WaitStep::look;
      case WaitStyle::yield: return WaitStep::yield;
      case WaitStyle::sleep: break;
    }
    return WaitStep::sleep;
  }
  // How long it sleeps after so long: until its end is about due, `most_us` at most.
  [[nodiscard]] constexpr std::uint64_t sleep_us(std::uint64_t waited_us, std::uint64_t most_us) const {
    const std::uint64_t due_us = expected_us - margin_us();
    return is_foreseen() && waited_us < due_us ? std::min(most_us, due_us - waited_us) : most_us;
  }

  WaitStyle style;
  std::uint64_t expected_us;  // 0: not known
  bool is_for_gpu = false;    // not for an answer of the executor's, which may need the core for it

 private:
  [[nodiscard]] constexpr bool is_foreseen() const { return expected_us >= kLeastExpectedUs; }
  // For so long before and after its expected end the end is about due.
  [[nodiscard]] constexpr std::uint64_t margin_us() const { return expected_us / 32; }
  [[nodiscard]] constexpr bool is_about_due(std::uint64_t waited_us) const {
    return is_foreseen() && waited_us + margin_us() >= expected_us && waited_us <= expected_us + margin_us();
  }
};

// Whether others want the core of a thread that looks again and again, giving it away in between: then it comes back late. A thread of the executor
// that has a few microseconds to do there goes unnoticed, and need not.
class CoreDemand {
 public:
  static constexpr std::uint64_t kLateUs = 300;       // between two looks at the clock, which are some 10 us apart
  static constexpr std::uint64_t kCountsUs = 50'000;  // so long it is taken to be wanted
  // Found so again soon, for twice as long each time: each time that it is not taken to be costs a slice of somebody else's.
  static constexpr std::uint64_t kCountsMostUs = 6'400'000;

  // True: it was late.
  bool note_look(std::uint64_t now_us, std::uint64_t since_last_us) {
    if (since_last_us < kLateUs) return false;
    counts_us_ = now_us < until_us_ + counts_us_ ? std::min(2 * counts_us_, kCountsMostUs) : kCountsUs;
    until_us_ = now_us + counts_us_;
    return true;
  }
  [[nodiscard]] bool is_high(std::uint64_t now_us) const { return now_us < until_us_; }

 private:
  std::uint64_t until_us_ = 0;
  std::uint64_t counts_us_ = 0;
};

// How long an automatic wait keeps looking before it sleeps, whoever else wants its core: at most 50 us where cores can be spared, 20 on three or
// four, 2 on one or two. Waits that last long in spite of it halve the budget, short ones double it again: threads that wait for long kernels soon do
// not spin at all.
class SpinBudget {
 public:
  static constexpr std::uint64_t kLeastUs = 2;
  static constexpr std::uint64_t kMostUs = 50;
  // Of a wait that is the first for a while, or for which the executor had to be woken: caches are cold, and a worker's way back to its core takes 20
  // to 80 us on a machine at rest. To sleep meanwhile would add two more such ways, the completion thread's and this thread's own. Such waits have
  // a budget of their own, and only where cores can be spared, since the worker may need this one.
  static constexpr std::uint64_t kMostColdUs = 200;
  static constexpr std::uint64_t kColdAfterUs = 500;  // without a wait
  static constexpr std::uint64_t kJustUs = 50;        // a wake-up so long before a wait is part of it

  explicit constexpr SpinBudget(std::uint64_t most_us) : most_us_(most_us), us_(most_us) {}
  // For the cores this thread may run on.
  [[nodiscard]] static std::uint64_t most_cold_us_for(int cores) { return can_spare(cores) ? kMostColdUs : most_us_for(cores); }
  [[nodiscard]] static bool can_spare(int cores) { return cores > 4; }
  [[nodiscard]] static std::uint64_t most_us_for(int cores) { return cores <= 2 ? kLeastUs : cores <= 4 ? 20 : kMostUs; }

  [[nodiscard]] std::uint64_t us() const { return us_; }
  // A wait that was not over at the first look took so long.
  void learn(std::uint64_t waited_us) { us_ = waited_us <= 2 * most_us_ ? std::min(us_ * 2, most_us_) : std::max(us_ / 2, kLeastUs); }

 private:
  std::uint64_t most_us_;
  std::uint64_t us_;
};

}  // namespace mpsshim::interposer
