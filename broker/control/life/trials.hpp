// SPDX-License-Identifier: Apache-2.0
// Who has caused a fault that nobody is shown guilty of: its suspects' last launches are run again, one session at a time, in an executor that
// serves nothing else (docs/recovery.md, "Trials"). Their sessions are lost anyway. Whose launches end that executor with the same error, at the same
// address where the kernel log names one, is guilty; nobody is for any other reason. The others are told that their work is lost, as without a trial.
// Owned by SessionManager; the control process's thread. What a client says of its own trial is believed: it concerns nobody else.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "broker/control/faults/fault_ledger.hpp"
#include "broker/control/faults/verdict.hpp"
#include "broker/control/life/session_ends.hpp"
#include "broker/control/placement/executor_choice.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "proto/client_requests.hpp"

namespace mpsshim::broker::control {

class Trials {
 public:
  // `open`: a session whose turn it is goes on (SessionOpening::await_executor).
  Trials(EventLoop& loop, const SessionLimits& limits, SessionTable& sessions, ExecutorChoice& choice, SessionEnds& ends, FaultLedger& ledger,
         std::function<void(ClientSession& session)> open)
      : loop_(loop), limits_(limits), sessions_(sessions), choice_(choice), ends_(ends), ledger_(ledger), open_(std::move(open)) {}

  // Of whom that was in `executor` when it died the launches are to be run again; empty: of nobody, or there is no executor to be had for it. Their
  // programs are suspects until that is over.
  [[nodiscard]] std::set<std::uint64_t> begin(const ManagedExecutor& executor, const DeathReport& report, std::optional<std::uint64_t> address,
                                              std::span<const SessionCondition> sessions);
  // The session, which is one of those, waits for its trial from now on: until its client asks, which it does at its next call.
  void take(ClientSession& session);
  // Its client asks: true while it is not its turn. Counts how long it waits.
  [[nodiscard]] bool awaits_turn(ClientSession& session);
  // From its client: that is over.
  void told(ClientSession& session, const proto::TrialEnded& ended);
  // An executor for trials has died by a fault: false if it is another one than the one they are about, and shows nothing.
  [[nodiscard]] bool confirms(const ManagedExecutor& executor, CUresult error, std::optional<std::uint64_t> address) const;
  // What its death costs has been settled: with somebody shown guilty, nobody else has to be tried.
  void settled(ManagedExecutor& executor, bool is_solved);
  void executor_ready(const ManagedExecutor& executor);
  void ended(std::uint64_t session);  // it is lost, or gone
  void end_all();                     // before a restart: nobody is to be tried among the others

 private:
  // A fault, and who may have caused it.
  struct Case {
    CUresult error = CUDA_SUCCESS;
    std::optional<std::uint64_t> address;
    ManagedExecutor* executor = nullptr;                         // reserved for it; ends with it
    const ManagedExecutor* faulted = nullptr;                    // compared only
    std::set<std::uint64_t> undecided;                           // sessions
    std::uint64_t current = 0;                                   // whose turn it is; 0: nobody's
    std::vector<std::shared_ptr<const ClientProgram>> programs;  // of all suspects
    EventLoop::Timer context, step, limit;
  };
  using Cases = std::map<std::uint64_t, Case>;

  [[nodiscard]] bool may_be_tried(const ClientSession& session, const SessionCondition& condition, const DeathReport& report) const;
  // Of those that have asked the one that has launched least so far: who has run well for long has hardly caused it. 0: nobody has.
  [[nodiscard]] std::uint64_t next_of(const Case& its) const;
  void give_up(ClientSession& session, const char* why);
  void go_on(std::uint64_t number);
  void end(std::uint64_t number);
  [[nodiscard]] Cases::iterator of(const ManagedExecutor& executor);
  [[nodiscard]] Cases::const_iterator of(const ManagedExecutor& executor) const;

  EventLoop& loop_;
  const SessionLimits& limits_;
  SessionTable& sessions_;
  ExecutorChoice& choice_;
  SessionEnds& ends_;
  FaultLedger& ledger_;
  const std::function<void(ClientSession&)> open_;
  Cases cases_;
  std::uint64_t last_case_ = 0;
};

}  // namespace mpsshim::broker::control
