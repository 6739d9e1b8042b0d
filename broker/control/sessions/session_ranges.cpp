// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/session_ranges.hpp"

#include <algorithm>
#include <utility>

#include "broker/control/base/complaints.hpp"
#include "broker/control/executors/managed_executor.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::size_t kRangesLogged = 4;  // of a session

bool holds(const proto::Lease& lease, std::uint64_t address) { return address - lease.address < lease.size_bytes; }

const proto::Lease* device_range_at(const ClientSession& session, std::uint64_t address) {
  if (holds(session.device_lease, address)) return &session.device_lease;
  const auto further = std::ranges::find_if(session.more_leases, [&](const proto::Lease& lease) { return holds(lease, address); });
  return further != session.more_leases.end() ? &*further : nullptr;
}

}  // namespace

void SessionRanges::make(const proto::DriverFacts& facts) {
  if (table_) return;
  std::uint64_t largest = 0;
  for (std::uint32_t i = 0; i < facts.device_count; ++i) largest = std::max(largest, facts.device[i].total_memory_bytes);
  table_ = std::make_unique<LeaseTable>(limits_.window, largest);
}

bool SessionRanges::ensure(ClientSession& session) {
  if (session.device_lease.size_bytes == 0) session.device_lease = table_->take_device(session.refused).value_or(proto::Lease{});
  if (session.pinned_lease.size_bytes == 0) session.pinned_lease = table_->take_pinned(session.refused).value_or(proto::Lease{});
  return session.device_lease.size_bytes != 0 && session.pinned_lease.size_bytes != 0;
}

bool SessionRanges::replace(ClientSession& session, const proto::Lease& refused) {
  const bool device = same_range(refused, session.device_lease);
  session.refused.push_back(refused);
  proto::Lease& lease = device ? session.device_lease : session.pinned_lease;
  const auto other = device ? table_->take_device(session.refused) : table_->take_pinned(session.refused);
  if (!other) return false;
  log_info("{}: gets {:#x} in place of {:#x}, which is in use in its process.", session.name(), other->address, refused.address);
  give_back(std::exchange(lease, *other));
  return true;
}

// Announced to the executor before the client learns of it, as a segment is.
std::optional<proto::Lease> SessionRanges::add(ClientSession& session, std::uint64_t size_bytes) {
  if (session.phase != SessionPhase::active) return std::nullopt;
  const bool has_many = session.more_leases.size() >= limits_.resources.further_leases;
  const auto lease = has_many ? std::nullopt : table_->take_more(size_bytes, sessions_.size());
  if (!lease) {
    complain("{}: its range of addresses has no room for {} MiB more, and no other is free; widen --window.", session.name(), size_bytes >> 20);
    return std::nullopt;
  }
  // A client may ask for many.
  if (session.more_leases.size() < kRangesLogged) {
    log_info("{}: gets a further range of {} MiB at {:#x}.", session.name(), lease->size_bytes >> 20, lease->address);
  }
  session.more_leases.push_back(*lease);
  session.executor->send(message::LeaseAdd{.session = session.id, .lease = *lease});
  return lease;
}

CUresult SessionRanges::open_peers(ClientSession& session, std::uint64_t address, const proto::DriverFacts& facts, proto::Lease& lease,
                                   std::uint64_t& owner) {
  if (session.phase != SessionPhase::active) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  for (const auto& [id, other] : sessions_.all()) {
    const proto::Lease* const range = device_range_at(other, address);
    if (range == nullptr) continue;
    if (id == session.id || !is_one_process(session.client, other.client) || other.phase == SessionPhase::closing) {
      complain("{}: asks for addresses of {}, which is not another session of its process; it does not get them.", session.name(), other.name());
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (facts.peer[session.device][other.device].can_access == 0) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    lease = *range;
    owner = id;
    if (std::ranges::any_of(session.peer_leases, [&](const proto::Lease& known) { return same_range(known, lease); })) return CUDA_SUCCESS;
    if (count_without_owner(session.peer_leases) >= limits_.resources.further_leases) return CUDA_ERROR_OUT_OF_MEMORY;
    session.peer_leases.push_back(lease);
    ++also_held_[lease.address];
    session.executor->send(message::LeaseAdd{.session = session.id, .lease = lease, .is_peers = 1});
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

std::size_t SessionRanges::count_without_owner(const std::vector<proto::Lease>& held) const {
  return static_cast<std::size_t>(std::ranges::count_if(held, [&](const proto::Lease& lease) {
    return std::ranges::none_of(sessions_.all(), [&](const auto& entry) {
      return same_range(entry.second.pinned_lease, lease) || device_range_at(entry.second, lease.address) != nullptr;
    });
  }));
}

bool SessionRanges::hold_pinned_of(ClientSession& session, const ClientSession& owner) {
  const auto is_its = [&](const proto::Lease& known) { return same_range(known, owner.pinned_lease); };
  if (std::ranges::any_of(session.peer_pinned_leases, is_its)) return true;
  if (count_without_owner(session.peer_pinned_leases) >= limits_.resources.further_leases) return false;
  session.peer_pinned_leases.push_back(owner.pinned_lease);
  ++also_held_[owner.pinned_lease.address];
  return true;
}

void SessionRanges::released(ClientSession& session, std::uint64_t address) {
  for (std::vector<proto::Lease>* leases : {&session.more_leases, &session.peer_leases}) {
    const auto found = std::ranges::find(*leases, address, &proto::Lease::address);
    if (found == leases->end()) continue;
    let_go(session, *found);
    leases->erase(found);
    return;
  }
}

bool SessionRanges::claim(const ClientSession& session) {
  bool claimed = claim(session.device_lease, false) && claim(session.pinned_lease, false);
  for (const proto::Lease& lease : session.more_leases) claimed = claimed && claim(lease, false);
  for (const std::vector<proto::Lease>* leases : {&session.peer_leases, &session.peer_pinned_leases}) {
    for (const proto::Lease& lease : *leases) claimed = claimed && claim(lease, true);
  }
  return claimed;
}

// Sessions come in any order, and the owner of a range that another one reaches may have ended.
bool SessionRanges::claim(const proto::Lease& lease, bool is_peers) {
  if (table_->claim(lease)) {
    if (is_peers) claimed_by_peers_.insert(lease.address);
    return true;
  }
  if (!is_peers && claimed_by_peers_.erase(lease.address) == 0) return false;
  ++also_held_[lease.address];
  return true;
}

void SessionRanges::let_go(const ClientSession& session) {
  const Remnants::Leases leases{session.device_lease, session.pinned_lease};
  if (!remnants_.keep(session.id, leases)) give_back({leases});
  for (const proto::Lease& lease : session.more_leases) let_go(session, lease);
  for (const proto::Lease& lease : session.peer_leases) let_go(session, lease);
  for (const proto::Lease& lease : session.peer_pinned_leases) let_go(session, lease);
}

void SessionRanges::let_go(const ClientSession& session, const proto::Lease& further) {
  if (!remnants_.keep(session.id, {further, {}})) give_back(further);
}

void SessionRanges::give_back(const std::vector<Remnants::Leases>& leases) {
  for (const Remnants::Leases& pair : leases) {
    give_back(pair.device);
    give_back(pair.pinned);
  }
}

void SessionRanges::give_back(const proto::Lease& lease) {
  if (!table_) return;
  const auto held = also_held_.find(lease.address);
  if (held == also_held_.end()) return table_->give_back(lease);
  if (--held->second == 0) also_held_.erase(held);
}

}  // namespace mpsshim::broker::control
