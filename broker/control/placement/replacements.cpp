// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/replacements.hpp"

#include <algorithm>
#include <set>

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kDrainLook{2};
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

void Replacements::check(ManagedExecutor& executor) {
  const auto found = drains_.find(executor.id());
  if (found == drains_.end() || executor.state() != ExecutorState::draining) return;
  const std::set<std::uint64_t> busy = executor.busy();
  const bool others_run = std::ranges::any_of(busy, [&](std::uint64_t id) {
    const ClientSession* session = sessions_.find(id);
    return session != nullptr && session->executor == &executor && !session->is_ending() && id != executor.blamed();
  });
  const bool drained = found->second.quiesced && !others_run;
  if (drained || EventLoop::Clock::now() >= found->second.until) return executor.replace();
  found->second.timer = loop_.after(kDrainLook, [this, &executor] { check(executor); });
}

}  // namespace mpsshim::broker::control
