// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/collectives.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "broker/control/base/complaints.hpp"
#include "broker/control/executors/managed_executor.hpp"

namespace mpsshim::broker::control {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirst{20};
constexpr milliseconds kTold{10'000};  // a pause between tries beyond which the log says that they stay together

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

// One at a time, in turns: what one has under way may wait for the other. Who is asked stands still until its work has ended, or it is clear that it
// does not: so after a try in vain the next one comes after twice as long.
void Collectives::look() {
  timer_.reset();
  const bool is_one_moving = std::ranges::any_of(sessions_.all(), [](const auto& entry) {
    return entry.second.relocation && entry.second.relocation->reason == SessionRelocation::Reason::collective;
  });
  if (!is_one_moving && !try_next()) return;
  timer_ = loop_.after(pause_, [this] { look(); });
}

// False: there is nobody left to move.
bool Collectives::try_next() {
  std::vector<ClientSession*> left;
  for (auto& [id, session] : sessions_.all()) {
    if (neighbour_of(session) != nullptr) left.push_back(&session);
  }
  if (left.empty()) return false;
  const milliseconds before = std::exchange(pause_, left.size() < left_ ? kFirst : 2 * pause_);
  left_ = left.size();
  if (before < kTold && pause_ >= kTold) tell(*left.front());
  std::rotate(left.begin(), std::ranges::upper_bound(left, last_, {}, &ClientSession::id), left.end());
  const auto began =
      std::ranges::find_if(left, [&](ClientSession* session) { return relocations_.leave_collective(*session, *neighbour_of(*session)); });
  if (began != left.end()) last_ = (*began)->id;
  return true;
}

void Collectives::tell(const ClientSession& session) const {
  complain(
      "{}: its kernels may wait for those of other devices, as those of {} do in executor {}, and it cannot go to another (--executors, the GPU's "
      "compute mode, or what it has): while both load modules, each may wait for the other for ever. Run each in a group that has an executor of its "
      "own (mpsctl namespace create NAME --own-executor; mpsrun --group NAME).",
      session.name(), neighbour_of(session)->name(), session.executor->label());
}

}  // namespace mpsshim::broker::control
