// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/wait.hpp"

#include <ctime>

#include <sched.h>

#include "interposer/log.hpp"

namespace mpsshim::interposer {

namespace {

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 1;
  return CPU_COUNT(&cores);
}

}  // namespace

std::uint64_t Wait::spin_budget_us() {
  static const std::uint64_t budget_us = usable_cores() <= 2 ? 2 : 50;
  return budget_us;
}

std::uint64_t Wait::now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

WaitEnd Wait::look_around() {
  // Relaxed: the state alone decides, and taking the channel's lock orders what recovery reads afterwards.
  switch (static_cast<proto::SessionState>(header_.session_state.load(std::memory_order_relaxed))) {
    case proto::SessionState::active: break;
    case proto::SessionState::moved: return WaitEnd::moved;
    case proto::SessionState::failed: return WaitEnd::failed;
  }
  const std::uint64_t now = now_us();
  if (now - looked_us_ < kStepUs) return WaitEnd::ready;
  looked_us_ = now;
  if (peer_.has_hung_up != nullptr && peer_.has_hung_up(peer_.state)) return WaitEnd::gone;
  if (!logged_ && now - started_us_ >= kLogAfterUs) {
    logged_ = true;
    debug_line(DebugTopic::wait, "session %llu (epoch %llu) has been waiting for %s for %llu s; `mpsctl` shows what the broker does",
               static_cast<unsigned long long>(header_.session), static_cast<unsigned long long>(header_.epoch), reason_,
               static_cast<unsigned long long>((now - started_us_) / 1'000'000));
  }
  return WaitEnd::ready;
}

}  // namespace mpsshim::interposer
