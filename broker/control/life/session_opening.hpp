// SPDX-License-Identifier: Apache-2.0
// How a session comes into an executor: its client's Attach is held until there is one, ranges and channel are made, what it has from an earlier
// executor is brought along, and the client is answered when it is open there. Every such wait has a limit.
// Owned by SessionManager; the control process's thread. Requests come from ClientConnection.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <cuda.h>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/faults/fault_ledger.hpp"
#include "broker/control/life/session_ends.hpp"
#include "broker/control/placement/executor_choice.hpp"
#include "broker/control/placement/probation.hpp"
#include "broker/control/sessions/session_ranges.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

// What executors are told that a session is to have (SessionOpen, SessionProvision).
struct SessionTerms {
  std::uint64_t device_limit_bytes = 0;
  std::uint32_t thread_percentage = 0;
  std::uint32_t client_priority = 0;
  std::uint64_t group = 0;
  std::uint32_t group_percentage = 0;
  std::uint64_t chunks = 0;           // of its static partition, or what is not kept for others at work; 0: percentages hold
  std::uint32_t percentage_left = 0;  // what is kept for others does not count for it; 0: nothing is
  // What its client goes by.
  [[nodiscard]] std::uint32_t told_percentage() const {
    return proto::lower_percentage(proto::lower_percentage(thread_percentage, group_percentage), percentage_left);
  }
};

class SessionOpening {
 public:
  struct Settings {
    std::function<std::uint64_t(const ClientSession&, const ManagedExecutor&)> memory_limit;  // of one that is opened for the first time
    std::function<std::uint32_t(const ClientSession&, const ManagedExecutor&)> thread_percentage;  // likewise
    std::function<std::uint32_t(const ClientSession&)> client_priority;                            // likewise
    std::function<SessionTerms(const ClientSession&)> terms;                                       // of one that is opened, by what it has
    std::function<bool(ClientSession& session)> awaits_turn{};          // of those on trial; await_executor() follows (Trials)
    std::function<bool(const ClientSession& newcomer)> is_held_back{};  // from an executor that is ready; serve() follows (HeapRenewal)
  };
  SessionOpening(EventLoop& loop, const SessionLimits& limits, SessionTable& sessions, const ExecutorPool& pool, ExecutorChoice& choice,
                 SessionRanges& ranges, const FaultLedger& ledger, Probation& probation, SessionEnds& ends, Settings settings)
      : loop_(loop),
        limits_(limits),
        sessions_(sessions),
        pool_(pool),
        choice_(choice),
        ranges_(ranges),
        ledger_(ledger),
        probation_(probation),
        ends_(ends),
        settings_(std::move(settings)) {}

  // Answers once, now or later, unless the session ends first. CUDA_SUCCESS with lost_error set: the session did not survive its executor.
  void attach(ClientSession& session, ClientSession::Answer answer);
  // `refused` is one of the session's two leases; the answer means that it has another one in its place.
  void replace_lease(ClientSession& session, const proto::Lease& refused, ClientSession::Answer answer);
  void programs_known();                  // who has waited for that is placed
  void serve(ManagedExecutor& executor);  // it is ready: those that wait for it
  // Places it, unless it has its place or waits for its program to be known, and opens it there once that can be.
  void await_executor(ClientSession& session);
  // Whose request is to be answered by this executor.
  [[nodiscard]] std::vector<std::uint64_t> waiting_for(const ManagedExecutor& executor) const;

  // From executors.
  void opened(ClientSession& session, CUresult status);
  void reopen(ClientSession& session);  // it was closed to get other ranges

 private:
  [[nodiscard]] bool awaits_program(const ClientSession& session) const;
  void arm_deadline(ClientSession& session);
  void timed_out(ClientSession& session);
  void open_in_executor(ClientSession& session);
  static void restore_memory(const ClientSession& session, ManagedExecutor& executor);
  void send_open(ClientSession& session, ManagedExecutor& executor);

  EventLoop& loop_;
  const SessionLimits& limits_;
  SessionTable& sessions_;
  const ExecutorPool& pool_;
  ExecutorChoice& choice_;
  SessionRanges& ranges_;
  const FaultLedger& ledger_;
  Probation& probation_;
  SessionEnds& ends_;
  const Settings settings_;
};

}  // namespace mpsshim::broker::control
