// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/wait.hpp"

#include <ctime>
#include <utility>

#include <sched.h>

#include "interposer/log.hpp"
#include "interposer/own_latency.hpp"
#include "proto/trace.hpp"

namespace mpsshim::interposer {

namespace {

int usable_cores() {
  static const int cores = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  }();
  return cores;
}

// A thread's own, so that one that waits for long kernels does not spoil it for one that waits for short ones.
struct ThreadWaits {
  SpinBudget budget{SpinBudget::most_us_for(usable_cores())};
  SpinBudget cold_budget{SpinBudget::most_cold_us_for(usable_cores())};
  CoreDemand core_demand;
  std::uint64_t last_wake_us = 0;  // when it rang a doorbell for a worker that slept
  std::uint64_t last_end_us = 0;   // of a wait

  [[nodiscard]] bool is_cold(std::uint64_t now_us) const {
    return now_us - last_wake_us < SpinBudget::kJustUs || now_us - last_end_us >= SpinBudget::kColdAfterUs;
  }
};

ThreadWaits& thread_waits() {
  static thread_local ThreadWaits waits;
  return waits;
}

}  // namespace

void Wait::note_wake() { thread_waits().last_wake_us = clock_us(); }

std::uint64_t Wait::clock_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

void Wait::begin() {
  started_us_ = now_us_ = looked_us_ = slept_us_ = clock_us();
  if (plan_.style == WaitStyle::automatic) {
    ThreadWaits& waits = thread_waits();
    budget_ = waits.is_cold(started_us_) ? &waits.cold_budget : &waits.budget;
    budget_us_ = budget_->us();
  }
  if (plan_.style == WaitStyle::spin && usable_cores() <= 2) plan_.style = WaitStyle::yield;
}

std::uint64_t Wait::awake_us() const {
  const proto::Latency own = own_latency();  // a word that is none is told on any machine
  return SpinBudget::can_spare(usable_cores()) ? proto::awake_limit_us(own, header_.awake_us.load(std::memory_order_relaxed)) : 0;
}

bool Wait::keeps_looking() {
  const std::uint64_t last_us = std::exchange(now_us_, clock_us());
  CoreDemand& core_demand = thread_waits().core_demand;
  if (!slept_) was_late_ |= core_demand.note_look(now_us_, now_us_ - last_us);
  const WaitStep step = plan_.next_step(now_us_ - started_us_, budget_us_, awake_us(), core_demand.is_high(now_us_));
  if (plan_.style == WaitStyle::automatic && now_us_ - started_us_ >= budget_us_) looks_ = kPatientLooksPerClock;
  if (step == WaitStep::yield) sched_yield();
  return step != WaitStep::sleep;
}

WaitEnd Wait::end(WaitEnd found) {
  const std::uint64_t now_us = clock_us();
  if (!slept_) slept_us_ = now_us;
  if (budget_ != nullptr) {
    if (!was_late_) budget_->learn(now_us - started_us_);  // else it was long because others had the core
    thread_waits().last_end_us = now_us;
  }
  if (proto::trace::enabled()) [[unlikely]]
    proto::trace::complete("wait", reason_, started_us_ * 1000, {{"slept", slept_ ? 1u : 0u}});
  return found;
}

WaitEnd Wait::look_around() {
  // Relaxed: the state alone decides, and taking the channel's lock orders what recovery reads afterwards.
  switch (static_cast<proto::SessionState>(header_.session_state.load(std::memory_order_relaxed))) {
    case proto::SessionState::active: break;
    case proto::SessionState::moved:
    case proto::SessionState::on_trial: return WaitEnd::moved;
    case proto::SessionState::failed: return WaitEnd::failed;
  }
  if (now_us_ - looked_us_ < kStepUs) return WaitEnd::ready;
  looked_us_ = now_us_;
  if (peer_.has_hung_up != nullptr && peer_.has_hung_up(peer_.state)) return WaitEnd::gone;
  if (!logged_ && now_us_ - started_us_ >= kLogAfterUs) {
    logged_ = true;
    debug_line(DebugTopic::wait, "session %llu (epoch %llu) has been waiting for %s for %llu s; `mpsctl` shows what the broker does",
               static_cast<unsigned long long>(header_.session), static_cast<unsigned long long>(header_.epoch), reason_,
               static_cast<unsigned long long>((now_us_ - started_us_) / 1'000'000));
  }
  return WaitEnd::ready;
}

}  // namespace mpsshim::interposer
