// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/collectives.hpp"

#include <algorithm>

#include "broker/control/executors/managed_executor.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirst{20};
constexpr milliseconds kRarest{10'000};

}  // namespace

void Collectives::linked(ClientSession& session, std::uint64_t owner_id) {
  ClientSession* const owner = sessions_.find(owner_id);
  if (owner == nullptr || (owner->device == session.device && owner->collective == 0)) return;
  if (session.collective != 0 && session.collective == owner->collective) return;
  std::uint64_t least = std::min(session.id, owner->id);
  for (const ClientSession* one : {&session, owner}) {
    if (one->collective != 0) least = std::min(least, one->collective);
  }
  const std::uint64_t former[] = {session.collective, owner->collective};
  for (auto& [id, other] : sessions_.all()) {
    if (other.collective != 0 && std::ranges::find(former, other.collective) != std::end(former)) other.collective = least;
  }
  session.collective = owner->collective = least;
  pause_ = kFirst;
  timer_ = loop_.after(pause_, [this] { look(); });
}

const ClientSession* Collectives::neighbour_of(const ClientSession& session) const {
  if (session.collective == 0 || session.phase != SessionPhase::active) return nullptr;
  for (const auto& [id, other] : sessions_.all()) {
    if (other.executor == session.executor && other.in_executor() && other.collective != 0 && other.collective < session.collective) return &other;
  }
  return nullptr;
}

// One at a time: what one has under way may wait for the other.
void Collectives::look() {
  timer_.reset();
  bool is_any_left = false;
  bool is_one_moving = std::ranges::any_of(sessions_.all(), [](const auto& entry) {
    return entry.second.relocation && entry.second.relocation->reason == SessionRelocation::Reason::collective;
  });
  for (auto& [id, session] : sessions_.all()) {
    const ClientSession* const neighbour = neighbour_of(session);
    if (neighbour == nullptr) continue;
    is_any_left = true;
    if (!is_one_moving) is_one_moving = relocations_.leave_collective(session, *neighbour);
  }
  if (!is_any_left) return;
  pause_ = is_one_moving ? kFirst : std::min(2 * pause_, kRarest);
  timer_ = loop_.after(pause_, [this] { look(); });
}

}  // namespace mpsshim::broker::control
