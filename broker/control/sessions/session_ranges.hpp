// SPDX-License-Identifier: Apache-2.0
// The address ranges of sessions: leases from the table, given back at a session's end, unless something of it is left in an executor that it has
// moved away from (Remnants).
// Owned by SessionManager; the control process's thread. Nothing but let_go() and claim() may be asked before make().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "broker/control/base/lease_table.hpp"
#include "broker/control/base/remnants.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker::control {

class SessionRanges {
 public:
  SessionRanges(const SessionLimits& limits, const SessionTable& sessions) : limits_(limits), sessions_(sessions) {}

  void make(const proto::DriverFacts& facts);  // the table, once the devices' memory is known
  // That the session has a device and a pinned range. False: none is free that it has not refused.
  [[nodiscard]] bool ensure(ClientSession& session);
  // In place of `refused`, which is one of the two. False: there is none, and the session keeps it.
  [[nodiscard]] bool replace(ClientSession& session, const proto::Lease& refused);
  // A further device range of at least `size_bytes`, announced to the session's executor; nothing: there is none.
  [[nodiscard]] std::optional<proto::Lease> add(ClientSession& session, std::uint64_t size_bytes);
  // The device range that holds `address`, which is another session's of the same process: for memory of that one's device, at the addresses that it
  // has there. Announced to the session's executor. Nobody else gets the range before both sessions have let it go.
  [[nodiscard]] CUresult open_peers(ClientSession& session, std::uint64_t address, const proto::DriverFacts& facts, proto::Lease& lease,
                                    std::uint64_t& owner);
  // Nobody else gets the owner's pinned range before this session has ended as well, which has memory at addresses of it. False: it holds so many
  // already, of sessions that have ended, that others would miss them.
  [[nodiscard]] bool hold_pinned_of(ClientSession& session, const ClientSession& owner);
  void released(ClientSession& session, std::uint64_t address);  // a further one, or another session's
  // All of a session that has been handed over. False if they are not to be had.
  [[nodiscard]] bool claim(const ClientSession& session);
  void let_go(const ClientSession& session);  // it ends

  // What sessions have left behind in executors.
  void left_behind(const ManagedExecutor& where, std::uint64_t session) { remnants_.add(where, session); }
  [[nodiscard]] bool is_left_in(const ManagedExecutor& where, std::uint64_t session) const { return remnants_.contains(where, session); }
  void taken_down(const ManagedExecutor& where, std::uint64_t session) { give_back(remnants_.remove(where, session)); }
  void executor_ended(const ManagedExecutor& executor) { give_back(remnants_.remove_all(executor)); }

 private:
  void give_back(const std::vector<Remnants::Leases>& leases);
  void give_back(const proto::Lease& lease);
  void let_go(const ClientSession& session, const proto::Lease& further);
  [[nodiscard]] bool claim(const proto::Lease& lease, bool is_peers);
  [[nodiscard]] std::size_t count_without_owner(const std::vector<proto::Lease>& held) const;

  const SessionLimits& limits_;
  const SessionTable& sessions_;
  std::unique_ptr<LeaseTable> table_;
  Remnants remnants_;
  std::map<std::uint64_t, unsigned> also_held_;  // by address: by how many sessions but the first
  std::set<std::uint64_t> claimed_by_peers_;     // at a hand-over, before their owners have
};

}  // namespace mpsshim::broker::control
