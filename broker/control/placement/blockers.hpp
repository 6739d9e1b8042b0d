// SPDX-License-Identifier: Apache-2.0
// Kernels without end that block all executors there are for a user, while somebody waits: after a time one of them ends (--blocked-s).
// Owned by SessionManager; the control process's thread.
#pragma once

#include <functional>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/faults/fault_ledger.hpp"
#include "broker/control/placement/executor_choice.hpp"
#include "broker/control/placement/kinds.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

class Blockers {
 public:
  using Fail = std::function<void(ClientSession&, CUresult error, const char* why)>;  // SessionEnds::fail
  Blockers(const SessionLimits& limits, SessionTable& sessions, const ExecutorPool& pool, const ExecutorChoice& choice, const Kinds& kinds,
           FaultLedger& ledger, Fail fail)
      : limits_(limits), sessions_(sessions), pool_(pool), choice_(choice), kinds_(kinds), ledger_(ledger), fail_(std::move(fail)) {}

  // `waiting` has nowhere to go. True if one of the blocking kernels ends for it.
  [[nodiscard]] bool end_one_for(const ClientSession& waiting);

 private:
  const SessionLimits& limits_;
  SessionTable& sessions_;
  const ExecutorPool& pool_;
  const ExecutorChoice& choice_;
  const Kinds& kinds_;
  FaultLedger& ledger_;
  const Fail fail_;
};

}  // namespace mpsshim::broker::control
