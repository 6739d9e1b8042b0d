// SPDX-License-Identifier: Apache-2.0
#include "broker/control/life/investigation.hpp"

#include <array>
#include <vector>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

SessionCondition Investigation::condition_of(const ClientSession& session, bool busy) {
  SessionCondition condition;
  condition.session = session.id;
  condition.busy = busy;
  condition.client_gone = session.phase == SessionPhase::closing;
  condition.terminated = session.phase == SessionPhase::terminating;
  condition.ranges = session.more_leases;
  condition.ranges.insert(condition.ranges.end(), session.peer_leases.begin(), session.peer_leases.end());
  condition.ranges.insert(condition.ranges.end(), session.peer_pinned_leases.begin(), session.peer_pinned_leases.end());
  condition.ranges.push_back(session.device_lease);
  condition.ranges.push_back(session.pinned_lease);
  return condition;
}

std::string Investigation::name_of(std::uint64_t id) const {
  const ClientSession* const session = sessions_.find(id);
  return session == nullptr ? fmt::format("Session {}", id) : session->name();
}

Guilt Investigation::investigate(const ManagedExecutor& executor, const DeathReport& report, std::span<const SessionCondition> conditions) {
  const std::optional<XidLine> xid = kernel_log_.find(report.pid);
  const std::optional<std::uint64_t> address = xid ? xid->address : std::nullopt;
  const Guilt guilt = find_guilty(report, conditions, address);
  const std::vector<std::uint64_t> suspects = find_suspects(report, conditions);
  std::string where = address ? fmt::format("address {:#x}", *address) : "address unknown";
  if (xid) where += fmt::format(" (the kernel log: {})", xid->text);
  if (guilt.proof != Proof::none) {
    log_server(report.pid, "The client that has caused it: {}; {}; {}.", name_of(guilt.session), work_text(report.work, guilt.session), where);
    log_error("{}: is guilty of CUDA error {} in executor {} (pid {}): {}; {}; {}.", name_of(guilt.session), static_cast<int>(report.error),
              executor.label(), report.pid, proof_text(guilt.proof), work_text(report.work, guilt.session), where);
    if (is_a_programs_doing(report.error)) ledger_.note_fault(sessions_.programs_of(std::array{guilt.session}));
    return guilt;
  }
  if (const std::uint64_t owner = address ? owner_of(*address, conditions) : 0; owner != 0) {
    where += fmt::format(", in the memory of {}, which shows nothing: others' kernels can go there", name_of(owner));
  }
  log_error("CUDA error {} in executor {} (pid {}): none of {} clients with work under way is shown guilty; {}.", static_cast<int>(report.error),
            executor.label(), report.pid, suspects.size(), where);
  log_server(report.pid, "It is not known which of {} clients has caused it; {}.", suspects.size(), where);
  for (const std::uint64_t id : suspects) log_error("{}: is one of {} suspects; {}.", name_of(id), suspects.size(), work_text(report.work, id));
  return guilt;
}

std::optional<std::uint64_t> Investigation::address_of(pid_t pid) {
  const std::optional<XidLine> xid = kernel_log_.find(pid);
  return xid ? xid->address : std::nullopt;
}

}  // namespace mpsshim::broker::control
