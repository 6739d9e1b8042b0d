// SPDX-License-Identifier: Apache-2.0
// Of one kind are the clients of a program, and where users share executors, those of a user. Kernels without end of one kind may block all
// executors but the last, which is for the others.
// Owned by SessionManager; the control process's thread. No state of its own.
#pragma once

#include <cstddef>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

class Kinds {
 public:
  Kinds(const SessionLimits& limits, const SessionTable& sessions, const ExecutorPool& pool) : limits_(limits), sessions_(sessions), pool_(pool) {}

  // How many executors that serve the session's user its kind blocks.
  [[nodiscard]] std::size_t blocked_by(const ClientSession& session) const;
  // They are as many as it may block.
  [[nodiscard]] bool block_their_share(const ClientSession& session) const;

 private:
  [[nodiscard]] bool are_one(const ClientSession& a, const ClientSession& b) const;

  const SessionLimits& limits_;
  const SessionTable& sessions_;
  const ExecutorPool& pool_;
};

}  // namespace mpsshim::broker::control
