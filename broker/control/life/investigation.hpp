// SPDX-License-Identifier: Apache-2.0
// Who has caused a fault: the evidence is gathered here, weighed in guilt.cpp, told to the log, and noted against programs (FaultLedger).
// Owned by SessionManager; the control process's thread. The kernel log is others' text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "broker/control/executors/managed_executor.hpp"
#include "broker/control/faults/fault_ledger.hpp"
#include "broker/control/faults/kernel_log.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

class Investigation {
 public:
  Investigation(const SessionTable& sessions, FaultLedger& ledger) : sessions_(sessions), ledger_(ledger) {}

  void listen(EventLoop& loop, std::function<void(const XidLine&)> told) { kernel_log_.listen(loop, std::move(told)); }
  // When the kernel log first told of a fault of that process, of late.
  [[nodiscard]] std::optional<ProgressTick> first_heard(pid_t pid) { return kernel_log_.first_heard(pid); }
  // Where, of late, as the kernel log names it.
  [[nodiscard]] std::optional<std::uint64_t> address_of(pid_t pid);
  // What is known of a session of an executor that has died.
  [[nodiscard]] static SessionCondition condition_of(const ClientSession& session, bool busy);
  // Notes the fault against the program of who is guilty; where nobody is, that is the caller's.
  [[nodiscard]] Guilt investigate(const ManagedExecutor& executor, const DeathReport& report, std::span<const SessionCondition> conditions);

 private:
  [[nodiscard]] std::string name_of(std::uint64_t session) const;

  const SessionTable& sessions_;
  FaultLedger& ledger_;
  KernelLog kernel_log_;
};

}  // namespace mpsshim::broker::control
