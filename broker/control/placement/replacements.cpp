// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/replacements.hpp"

#include <algorithm>
#include <set>

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kDrainLook{2};
constexpr std::chrono::milliseconds kLastAnswers{100};  // who waits for the next life does not wait longer for times
}

void Replacements::begin(ManagedExecutor& executor, bool is_a_clients) {
  executor.begin_drain();
  Drain& drain = drains_[executor.id()];
  drain.is_a_clients = is_a_clients;
  drain.until = EventLoop::Clock::now() + limits_.drain;
  check(executor);
}

void Replacements::quiesced(ManagedExecutor& executor) {
  const auto found = drains_.find(executor.id());
  if (found == drains_.end()) return;
  found->second.quiesced = true;
  check(executor);
}

bool Replacements::life_ended(const ManagedExecutor& executor) {
  const auto drain = drains_.extract(executor.id());
  return !drain.empty() && drain.mapped().is_a_clients;
}

bool Replacements::has_any(House house) const {
  return std::ranges::any_of(drains_, [&](const auto& entry) { return entry.first.user == house.value_or(entry.first.user); });
}

void Replacements::ask_sessions(ManagedExecutor& executor, Drain& drain) {
  drain.order = ++last_order_;
  drain.until = EventLoop::Clock::now() + kLastAnswers;
  for (auto& [id, session] : sessions_.all()) {
    if (session.executor != &executor || session.phase != SessionPhase::active || session.relocation || id == executor.blamed()) continue;
    executor.send(message::SessionPause{.session = id, .order = drain.order, .flags = kPauseToRest | kPauseDespiteVariables | kPauseLast});
    session.event_times.reset();
    session.event_times_hold = false;
    drain.awaited.insert(id);
  }
}

void Replacements::paused(ClientSession& session, const message::SessionPaused& answer) {
  if (session.executor == nullptr) return;
  const auto drain = drains_.find(session.executor->id());
  if (drain == drains_.end() || drain->second.order != answer.order || drain->second.awaited.erase(session.id) == 0) return;
  session.event_times_hold = answer.status == CUDA_SUCCESS;
  check(*session.executor);
}

void Replacements::check(ManagedExecutor& executor) {
  const auto found = drains_.find(executor.id());
  if (found == drains_.end() || executor.state() != ExecutorState::draining) return;
  const std::set<std::uint64_t> busy = executor.busy();
  const bool others_run = std::ranges::any_of(busy, [&](std::uint64_t id) {
    const ClientSession* session = sessions_.find(id);
    return session != nullptr && session->executor == &executor && !session->is_ending() && id != executor.blamed();
  });
  Drain& drain = found->second;
  if (drain.order == 0 && drain.quiesced && !others_run) ask_sessions(executor, drain);
  std::erase_if(drain.awaited, [&](std::uint64_t id) {
    const ClientSession* session = sessions_.find(id);
    return session == nullptr || session->phase != SessionPhase::active;
  });
  const bool is_done = drain.order != 0 && drain.awaited.empty();
  if (is_done || EventLoop::Clock::now() >= drain.until) return executor.replace();
  drain.timer = loop_.after(kDrainLook, [this, &executor] { check(executor); });
}

}  // namespace mpsshim::broker::control
