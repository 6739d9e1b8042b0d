// SPDX-License-Identifier: Apache-2.0
// Programs that the broker does not know yet, where --probation-s asks for it: their clients are served apart (ExecutorChoice), until one of them has
// been served for so long without a fault, or has ended without one. Then the program is known (FaultLedger::note_good), newcomers of it go to where
// the others are, and so do its clients that are there, if what they have can. Who could not is asked again, each time after twice as long: it has
// to come to rest for that.
// Owned by SessionManager; the control process's thread. ClientSession::probation is changed here alone.
#pragma once

#include <chrono>
#include <cstdint>

#include "broker/control/faults/fault_ledger.hpp"
#include "broker/control/placement/executor_choice.hpp"
#include "broker/control/placement/relocations.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

class Probation {
 public:
  Probation(EventLoop& loop, std::chrono::seconds length, SessionTable& sessions, FaultLedger& ledger, const ExecutorChoice& choice,
            Relocations& relocations)
      : loop_(loop), length_(length), sessions_(sessions), ledger_(ledger), choice_(choice), relocations_(relocations) {}

  void served(ClientSession& session);  // its executor has opened it, for the first time or again

 private:
  void look_after(ClientSession& session, std::chrono::seconds wait);
  void pass(ClientSession& session);

  EventLoop& loop_;
  const std::chrono::seconds length_;  // 0: nobody is on probation
  SessionTable& sessions_;
  FaultLedger& ledger_;
  const ExecutorChoice& choice_;
  Relocations& relocations_;
};

}  // namespace mpsshim::broker::control
