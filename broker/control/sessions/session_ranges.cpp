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
}

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
  table_->give_back(std::exchange(lease, *other));
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

void SessionRanges::released(ClientSession& session, std::uint64_t address) {
  const auto found = std::ranges::find(session.more_leases, address, &proto::Lease::address);
  if (found == session.more_leases.end()) return;
  table_->give_back(*found);
  session.more_leases.erase(found);
}

bool SessionRanges::claim(const ClientSession& session) {
  bool claimed = table_->claim(session.device_lease) && table_->claim(session.pinned_lease);
  for (const proto::Lease& lease : session.more_leases) claimed = claimed && table_->claim(lease);
  return claimed;
}

void SessionRanges::let_go(const ClientSession& session) {
  const Remnants::Leases leases{session.device_lease, session.pinned_lease};
  if (!remnants_.keep(session.id, leases)) give_back({leases});
  for (const proto::Lease& lease : session.more_leases) {
    const Remnants::Leases further{lease, {}};
    if (!remnants_.keep(session.id, further)) give_back({further});
  }
}

void SessionRanges::give_back(const std::vector<Remnants::Leases>& leases) {
  if (!table_) return;
  for (const Remnants::Leases& pair : leases) {
    table_->give_back(pair.device);
    table_->give_back(pair.pinned);
  }
}

}  // namespace mpsshim::broker::control
