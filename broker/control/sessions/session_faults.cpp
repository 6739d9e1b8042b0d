// SPDX-License-Identifier: Apache-2.0
// Who has caused a fault: the evidence is gathered here, weighed in guilt.cpp, and told to the log.
#include <algorithm>

#include "broker/control/sessions/session_manager.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

SessionCondition SessionManager::condition_of(const ClientSession& session, bool busy) {
  SessionCondition condition;
  condition.session = session.id;
  condition.busy = busy;
  condition.client_gone = session.phase == SessionPhase::closing;
  condition.terminated = session.phase == SessionPhase::terminating;
  condition.ranges = session.more_leases;
  condition.ranges.push_back(session.device_lease);
  condition.ranges.push_back(session.pinned_lease);
  return condition;
}

Guilt SessionManager::investigate(const ManagedExecutor& executor, const DeathReport& report, std::span<const SessionCondition> conditions) {
  const std::optional<XidLine> xid = kernel_log_.find(report.pid);
  const std::optional<std::uint64_t> address = xid ? xid->address : std::nullopt;
  const Guilt guilt = find_guilty(report, conditions, address);
  const std::vector<std::uint64_t> suspects = find_suspects(report, conditions);
  const auto name_of = [&](std::uint64_t id) {
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? fmt::format("Session {}", id) : found->second.name();
  };
  std::string where = address ? fmt::format("address {:#x}", *address) : "address unknown";
  if (xid) where += fmt::format(" (the kernel log: {})", xid->text);
  if (guilt.proof != Proof::none) {
    log_server(report.pid, "The client that has caused it: {}; {}; {}.", name_of(guilt.session), work_text(report.work, guilt.session), where);
    log_error("{}: is guilty of CUDA error {} in executor {} (pid {}): {}; {}; {}.", name_of(guilt.session), static_cast<int>(report.error),
              executor.label(), report.pid, proof_text(guilt.proof), work_text(report.work, guilt.session), where);
    if (is_a_programs_doing(report.error)) note_fault({guilt.session});
    return guilt;
  }
  if (const std::uint64_t owner = address ? owner_of(*address, conditions) : 0; owner != 0) {
    where += fmt::format(", in the memory of {}, which shows nothing: others' kernels can go there", name_of(owner));
  }
  log_error("CUDA error {} in executor {} (pid {}): none of {} clients with work under way is shown guilty; {}.", static_cast<int>(report.error),
            executor.label(), report.pid, suspects.size(), where);
  log_server(report.pid, "It is not known which of {} clients has caused it; {}.", suspects.size(), where);
  for (const std::uint64_t id : suspects) log_error("{}: is one of {} suspects; {}.", name_of(id), suspects.size(), work_text(report.work, id));
  if (is_a_programs_doing(report.error)) note_fault(suspects);
  return guilt;
}

// A client that faults at once may have gone before its program is known.
void SessionManager::note_fault(const std::vector<std::uint64_t>& suspects, double weight) {
  Suspicion suspicion{EventLoop::Clock::now(), weight, {}};
  for (const std::uint64_t id : suspects) {
    if (const auto session = sessions_.find(id); session != sessions_.end()) suspicion.programs.push_back(session->second.client.program);
  }
  suspicions_.push_back(std::move(suspicion));
  weigh_faults();
}

void SessionManager::weigh_faults() {
  std::erase_if(suspicions_, [&](const Suspicion& suspicion) {
    if (!std::ranges::all_of(suspicion.programs, [](const auto& program) { return program->is_known; })) return false;
    std::vector<Program> programs;
    for (const auto& program : suspicion.programs) programs.push_back(program->program);
    for (const Ward& ward : quarantine_.note_fault(programs, suspicion.when, suspicion.weight)) {
      log_warning(
          "{} has cost others {} faults within {} s and is in quarantine: next clients get an executor of their own, until there has been none for "
          "{} s (--quarantine-faults, --quarantine-s).",
          ward.name(), limits_.quarantine.faults, limits_.quarantine.window.count(), limits_.quarantine.window.count());
    }
    return true;
  });
  arm_release();
}

// A newcomer whose program may be one in quarantine, or one whose kernels block executors; the reader has a limit.
bool SessionManager::awaits_program(const ClientSession& session) const {
  if (session.executor != nullptr || session.client.program->is_known) return false;
  const auto is_its_users = [&](const auto& program) { return program->program.uid == session.client.uid; };
  const auto may_concern = [&](const Suspicion& suspicion) { return std::ranges::any_of(suspicion.programs, is_its_users); };
  if (quarantine_.concerns(session.client.uid) || std::ranges::any_of(suspicions_, may_concern)) return true;
  return std::ranges::any_of(pool_.all(), [&](const auto& entry) {
    return entry.first.device == session.device && entry.first.user == house_of(session.client) && entry.second->is_blocked();
  });
}

void SessionManager::programs_known() {
  weigh_faults();
  std::vector<std::uint64_t> waiting;  // answering may end a session
  for (const auto& [id, session] : sessions_) {
    const bool waits = session.phase == SessionPhase::waiting && session.answer && session.executor == nullptr;
    if (waits && session.client.program->is_known) waiting.push_back(id);
  }
  for (const std::uint64_t id : waiting) await_executor(sessions_.at(id));
}

void SessionManager::arm_release() {
  const auto next = quarantine_.next_release();
  if (next == EventLoop::Clock::time_point::max()) return release_timer_.reset();
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::max(next - EventLoop::Clock::now(), EventLoop::Clock::duration::zero()));
  release_timer_ = loop_.after(wait, [this] {
    for (const Ward& ward : quarantine_.release(EventLoop::Clock::now())) {
      std::erase_if(reserved_, [&](const auto& entry) { return entry.second == ward; });
      log_info("{} leaves quarantine: there has been no fault for {} s.", ward.name(), limits_.quarantine.window.count());
    }
    arm_release();
  });
}

}  // namespace mpsshim::broker::control
