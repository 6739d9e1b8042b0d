// SPDX-License-Identifier: Apache-2.0
// What an executor tells of itself: SessionManager is who hears it. Called on the control process's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include <sys/types.h>

#include "broker/call_table.hpp"
#include "broker/control/faults/verdict.hpp"
#include "broker/control_messages.hpp"
#include "broker/seen_end.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker::control {

class ManagedExecutor;

class ExecutorOwner {
 public:
  virtual ~ExecutorOwner() = default;
  virtual void executor_ready(ManagedExecutor& executor) = 0;
  virtual void executor_sent(ManagedExecutor& executor, ReceivedMessage& received) = 0;
  // Dead, its last messages handed on. `busy`: sessions with work in flight. The next life starts after this returns.
  // True: a session is to blame for it, and has been told.
  [[nodiscard]] virtual bool executor_died(ManagedExecutor& executor, const DeathReport& report, const std::set<std::uint64_t>& busy) = 0;
  // A driver call does not return. The executor is to be replaced; whose call it is will be in its DeathReport.
  virtual void executor_hangs(ManagedExecutor& executor, const PublishedCall& call) = 0;
  // A standby waits: it may be given what was loaded so far.
  virtual void standby_waits(ManagedExecutor& executor) = 0;
  // No driver could be made to serve at all; `why` is for the log and the person who started the broker.
  virtual void executor_cannot_start(ManagedExecutor& executor, const std::string& why) = 0;
  virtual void executor_stopped(ManagedExecutor& executor) = 0;  // after quit(), or retire()
  // When something else than the executor told of a fault of process `pid`.
  [[nodiscard]] virtual std::optional<ProgressTick> fault_heard(pid_t pid) = 0;
};

}  // namespace mpsshim::broker::control
