// SPDX-License-Identifier: Apache-2.0
// Sessions that starve in their executor are moved to another, as are those whose probation is over, and those that are about to use the device's
// heap where clients that have ended have left something: when that one is ready, their own is asked to pause them, and from then on they are what
// they would be after their executor's death. What they have mapped in the old one can be taken down only in a quiet window and stays behind till
// then (Remnants). Who cannot move stays, and its call waits on. Owned by SessionManager; the control process's thread. A SessionRelocation is
// changed here alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "broker/control/loading/load_replays.hpp"
#include "broker/control/placement/blockers.hpp"
#include "broker/control/placement/executor_choice.hpp"
#include "broker/control/sessions/session_ranges.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "broker/control_messages.hpp"

namespace mpsshim::broker::control {

class Relocations {
 public:
  // `may_move`: no restart is under way. Asked before a move for tests.
  Relocations(EventLoop& loop, const SessionLimits& limits, SessionTable& sessions, ExecutorChoice& choice, const Kinds& kinds, Blockers& blockers,
              SessionRanges& ranges, LoadReplays& replays, std::function<bool()> may_move);

  // From executors.
  void starved(ManagedExecutor& executor, const message::Starved& report);
  void heap_wanted(ManagedExecutor& executor, const message::HeapWanted& report);
  void paused(ClientSession& session, const message::SessionPaused& answer);
  void variables_checked(const ManagedExecutor& executor, const message::VariablesChecked& answer);
  // It is ready: who is to go there is asked to pause.
  void serve(const ManagedExecutor& executor);
  void cannot_start(const ManagedExecutor& executor);

  // To where the others are. False: it cannot be asked to now, or there is no such place.
  [[nodiscard]] bool leave_probation(ClientSession& session);

  // To where no session of another group is (Collectives), as there is in its executor. False: as above.
  [[nodiscard]] bool leave_collective(ClientSession& session, const ClientSession& neighbour);

  void drop(ClientSession& session);  // it goes nowhere

 private:
  void begin(ClientSession& session, ManagedExecutor& to);
  void seek_blank_heap(ClientSession& session);
  void give_heap(ClientSession& session, const char* why);
  void begin_one_for_tests();
  void ask_for_pause(ClientSession& session);
  void check_variables(ClientSession& session);
  void leave(ClientSession& session);  // for the other executor
  void stay(ClientSession& session, const char* why);
  [[nodiscard]] std::string name_of(std::uint64_t session) const;  // for the log, gone or not

  EventLoop& loop_;
  const SessionLimits& limits_;
  SessionTable& sessions_;
  ExecutorChoice& choice_;
  const Kinds& kinds_;
  Blockers& blockers_;
  SessionRanges& ranges_;
  LoadReplays& replays_;
  const std::function<bool()> may_move_;
  std::uint64_t last_order_ = 0;      // to pause
  EventLoop::Timer timer_for_tests_;  // SessionLimits::relocate_for_tests
  std::uint64_t last_for_tests_ = 0;  // a session
};

}  // namespace mpsshim::broker::control
