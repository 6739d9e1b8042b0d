// SPDX-License-Identifier: Apache-2.0
// Kernels without end: how many executors those of one kind may block, and what happens when all are blocked. Of one kind are the clients of a
// program, and where users share executors, those of a user.
#include <algorithm>
#include <tuple>

#include "broker/control/sessions/session_manager.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr unsigned kLeastForOthers = 3;  // executors: of two, clients of a program that wait for each other may need both
}

bool SessionManager::are_of_a_kind(const ClientSession& a, const ClientSession& b) const {
  if (limits_.shares_executors && limits_.serves_all_users) return a.client.uid == b.client.uid;
  return a.client.program->is_known && b.client.program->is_known && a.client.program->program == b.client.program->program;
}

// Executors that serve the session's user and that its kind blocks.
std::size_t SessionManager::blocked_by_kind(const ClientSession& session) const {
  return static_cast<std::size_t>(std::ranges::count_if(pool_.all(), [&](const auto& entry) {
    const auto& [id, executor] = entry;
    if (id.device != session.device || id.user != house_of(session.client) || !executor->is_blocked()) return false;
    return std::ranges::any_of(executor->blockers(), [&](const ManagedExecutor::Blocker& blocker) {
      const auto found = sessions_.find(blocker.stream.session);
      return found != sessions_.end() && are_of_a_kind(found->second, session);
    });
  }));
}

// The last executor is for the others.
bool SessionManager::blocks_its_share(const ClientSession& session) const {
  return limits_.pool.executors >= kLeastForOthers && blocked_by_kind(session) + 1 >= limits_.pool.executors;
}

// Kernels keep everybody from being served: `waiting` has nowhere to go. True if one of them ends for it.
bool SessionManager::end_a_blocker(const ClientSession& waiting) {
  struct Candidate {
    ClientSession* session;
    std::size_t executors;  // that its kind blocks
    EventLoop::Clock::time_point since;
    [[nodiscard]] auto rank() const { return std::tuple(executors, since); }
  };
  if (limits_.blocked.count() == 0 || reserved_.contains(waiting.executor->id())) return false;
  const auto due = EventLoop::Clock::now() - limits_.blocked;
  std::vector<Candidate> candidates;
  std::size_t count = 0;
  for (const auto& [id, executor] : pool_.all()) {
    if (id.device != waiting.device || id.user != house_of(waiting.client) || executor->is_quitting() || reserved_.contains(id)) continue;
    ++count;
    const std::size_t before = candidates.size();
    if (!executor->is_blocked()) return false;
    for (const ManagedExecutor::Blocker& blocker : executor->blockers()) {
      ClientSession* const session = find(blocker.stream.session);
      const bool can_end = session != nullptr && session != &waiting && session->phase == SessionPhase::active && session->executor == executor.get();
      if (can_end && blocker.since <= due) candidates.push_back({session, blocked_by_kind(*session), blocker.since});
    }
    if (candidates.size() == before) return false;
  }
  if (count < 2) return false;  // a kernel that takes long is nobody's offence: --patience-s
  ClientSession& worst = *std::ranges::max_element(candidates, {}, &Candidate::rank)->session;
  log_warning(
      "{}: its kernel has run for more than {} s and blocks executor {}, all {} that there are for {} are blocked so, and it waits: the kernel's "
      "client gets CUDA_ERROR_LAUNCH_TIMEOUT (--blocked-s, --executors).",
      worst.name(), limits_.blocked.count() / 1000, worst.executor->label(), count, waiting.name());
  note_fault({worst.id}, limits_.quarantine.faults);
  fail(worst, CUDA_ERROR_LAUNCH_TIMEOUT, "its kernel blocked the last executor");
  return true;
}

}  // namespace mpsshim::broker::control
