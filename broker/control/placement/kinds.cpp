// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/kinds.hpp"

#include <algorithm>

namespace mpsshim::broker::control {

namespace {
constexpr unsigned kLeastForOthers = 3;  // executors: of two, clients of a program that wait for each other may need both
}

bool Kinds::are_one(const ClientSession& a, const ClientSession& b) const {
  if (limits_.shares_executors && limits_.serves_all_users) return a.client.uid == b.client.uid;
  return a.client.program->is_known && b.client.program->is_known && a.client.program->program == b.client.program->program;
}

std::size_t Kinds::blocked_by(const ClientSession& session) const {
  return static_cast<std::size_t>(std::ranges::count_if(pool_.all(), [&](const auto& entry) {
    const auto& [id, executor] = entry;
    if (id.device != session.device || id.user != limits_.house_of(session.client.uid) || !executor->is_blocked()) return false;
    return std::ranges::any_of(executor->blockers(), [&](const ManagedExecutor::Blocker& blocker) {
      const ClientSession* const blocking = sessions_.find(blocker.stream.session);
      return blocking != nullptr && are_one(*blocking, session);
    });
  }));
}

bool Kinds::block_their_share(const ClientSession& session) const {
  return limits_.pool.executors >= kLeastForOthers && blocked_by(session) + 1 >= limits_.pool.executors;
}

}  // namespace mpsshim::broker::control
