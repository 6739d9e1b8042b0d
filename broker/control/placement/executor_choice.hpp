// SPDX-License-Identifier: Apache-2.0
// Which executor serves whom. Newcomers go to the first that no kernel without end blocks; what is in quarantine is served apart, in an executor
// that is reserved for it, and so is what is on probation, and a group that has executors of its own. An executor that nobody needs any more is let
// go.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/faults/fault_ledger.hpp"
#include "broker/control/images/image_store.hpp"
#include "broker/control/placement/kinds.hpp"
#include "broker/control/sessions/session_ranges.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

class ExecutorChoice {
 public:
  ExecutorChoice(const SessionLimits& limits, const SessionTable& sessions, ExecutorPool& pool, const SessionRanges& ranges, const ImageStore& images,
                 const FaultLedger& ledger, const Kinds& kinds, std::function<std::uint64_t(const ClientSession&)> own_group)
      : own_group_(std::move(own_group)),
        limits_(limits),
        sessions_(sessions),
        pool_(pool),
        ranges_(ranges),
        images_(images),
        ledger_(ledger),
        kinds_(kinds) {}

  // False if no executor can have it.
  [[nodiscard]] bool place(ClientSession& session);
  // Where the session may go instead; nullptr: nowhere. Out of quarantine no move leads among the others. `pleases`: where that is so.
  [[nodiscard]] ManagedExecutor* other_than(
      const ManagedExecutor& present, const ClientSession& session, const ExecutorPool::Suits& pleases = [](const ManagedExecutor&) { return true; });
  // Where a session goes whose program is no longer on probation; nullptr: nowhere, or it is in no executor for that.
  [[nodiscard]] ManagedExecutor* out_of_probation(const ClientSession& session);
  // Where those who may have caused the end of `present` are tried, reserved for that; nullptr: none can be had. It may wait for make_context().
  [[nodiscard]] ManagedExecutor* for_trials(const ManagedExecutor& present);
  // Sessions have come or gone. Where there are several a trial may be wanted, and has to be quick: a process waits for it.
  void prepare_for_trials();
  // Clients that have ended, or are ending, have left nothing on its device's heap.
  [[nodiscard]] bool has_blank_heap(const ManagedExecutor& executor) const;
  [[nodiscard]] bool serves_probation(ExecutorId executor) const;
  [[nodiscard]] bool is_reserved(ExecutorId executor) const { return reserved_.contains(executor); }

  void let_go_if_unused(ManagedExecutor& executor);
  void forget(ExecutorId executor) { reserved_.erase(executor); }  // it is gone
  void released(const Ward& ward);                                 // from quarantine

 private:
  [[nodiscard]] bool suits(const ManagedExecutor& executor, const ClientSession& session) const;
  [[nodiscard]] bool is_kept_clean(const ManagedExecutor& executor) const;
  [[nodiscard]] bool is_used(const ManagedExecutor& executor) const;
  [[nodiscard]] ManagedExecutor* place_apart(const ClientSession& session, const Ward& ward);
  [[nodiscard]] ManagedExecutor* find_apart(const ClientSession& session, const Ward& ward) const;
  [[nodiscard]] ManagedExecutor* share_quarantine(const ClientSession& session) const;
  [[nodiscard]] bool is_near(ExecutorId executor, const ClientSession& session) const;  // of its device and its user

  // Of a session whose group is to have executors of its own; 0: it has none.
  const std::function<std::uint64_t(const ClientSession&)> own_group_;
  const SessionLimits& limits_;
  const SessionTable& sessions_;
  ExecutorPool& pool_;
  const SessionRanges& ranges_;
  const ImageStore& images_;
  const FaultLedger& ledger_;
  const Kinds& kinds_;
  std::map<ExecutorId, Ward> reserved_;  // executors that serve what is in quarantine, or on probation, or a group, or trials only
};

}  // namespace mpsshim::broker::control
