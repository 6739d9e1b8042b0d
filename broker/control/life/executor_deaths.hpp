// SPDX-License-Identifier: Apache-2.0
// What the death of an executor's life costs whom: the sessions that were in it are judged (verdict.hpp), and move to the next life, fail, or go.
// Owned by SessionManager; the control process's thread. The report is our own executor's, which may have crashed at any point.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "broker/control/life/investigation.hpp"
#include "broker/control/life/session_ends.hpp"
#include "broker/control/life/trials.hpp"
#include "broker/control/placement/relocations.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

class ExecutorDeaths {
 public:
  ExecutorDeaths(SessionTable& sessions, SessionEnds& ends, Relocations& relocations, Investigation& investigation, Trials& trials,
                 FaultLedger& ledger)
      : sessions_(sessions), ends_(ends), relocations_(relocations), investigation_(investigation), trials_(trials), ledger_(ledger) {}

  // `busy`: sessions with work in flight. True: a session is to blame for it, and has been told.
  [[nodiscard]] bool settle(ManagedExecutor& executor, const DeathReport& reported, const std::set<std::uint64_t>& busy);

 private:
  [[nodiscard]] Guilt find_guilty_of(ManagedExecutor& executor, const DeathReport& report, std::vector<SessionCondition>& conditions);
  [[nodiscard]] DeathReport excused(DeathReport report);
  void apply(const Verdict& verdict, const DeathReport& report);
  void move(ClientSession& session);

  SessionTable& sessions_;
  SessionEnds& ends_;
  Relocations& relocations_;
  Investigation& investigation_;
  Trials& trials_;
  FaultLedger& ledger_;
};

}  // namespace mpsshim::broker::control
