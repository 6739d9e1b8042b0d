// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/blockers.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

bool Blockers::end_one_for(const ClientSession& waiting) {
  struct Candidate {
    ClientSession* session;
    std::size_t executors;  // that its kind blocks
    EventLoop::Clock::time_point since;
    [[nodiscard]] auto rank() const { return std::tuple(executors, since); }
  };
  if (limits_.blocked.count() == 0 || choice_.is_reserved(waiting.executor->id())) return false;
  const auto due = EventLoop::Clock::now() - limits_.blocked;
  std::vector<Candidate> candidates;
  std::size_t count = 0;
  for (const auto& [id, executor] : pool_.all()) {
    if (id.device != waiting.device || id.user != limits_.house_of(waiting.client.uid) || executor->is_quitting() || choice_.is_reserved(id))
      continue;
    ++count;
    const std::size_t before = candidates.size();
    if (!executor->is_blocked()) return false;
    for (const ManagedExecutor::Blocker& blocker : executor->blockers()) {
      ClientSession* const session = sessions_.find(blocker.stream.session);
      const bool can_end = session != nullptr && session != &waiting && session->phase == SessionPhase::active && session->executor == executor.get();
      if (can_end && blocker.since <= due) candidates.push_back({session, kinds_.blocked_by(*session), blocker.since});
    }
    if (candidates.size() == before) return false;
  }
  if (count < 2) return false;  // a kernel that takes long is nobody's offence: --patience-s
  ClientSession& worst = *std::ranges::max_element(candidates, {}, &Candidate::rank)->session;
  log_warning(
      "{}: its kernel has run for more than {} s and blocks executor {}, all {} that there are for {} are blocked so, and it waits: the kernel's "
      "client gets CUDA_ERROR_LAUNCH_TIMEOUT (--blocked-s, --executors).",
      worst.name(), limits_.blocked.count() / 1000, worst.executor->label(), count, waiting.name());
  ledger_.note_fault({worst.client.program}, limits_.quarantine.faults);
  fail_(worst, CUDA_ERROR_LAUNCH_TIMEOUT, "its kernel blocked the last executor");
  return true;
}

}  // namespace mpsshim::broker::control
