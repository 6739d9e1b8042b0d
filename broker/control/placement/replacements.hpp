// SPDX-License-Identifier: Apache-2.0
// Executors that are to be replaced: they read no new work, what innocent sessions have in flight is waited for, and then the life is ended. Each
// session that ends its work in time moves instead of failing. With it go the times of its events, which the executor is asked for at last.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "broker/control_messages.hpp"

namespace mpsshim::broker::control {

class Replacements {
 public:
  Replacements(EventLoop& loop, const SessionLimits& limits, SessionTable& sessions) : loop_(loop), limits_(limits), sessions_(sessions) {}

  // `is_a_clients`: for what a client has left running, or because a command ended one. That says nothing against the executor.
  void begin(ManagedExecutor& executor, bool is_a_clients);
  void quiesced(ManagedExecutor& executor);  // until it is, whoever is idle may be busy the next moment
  void paused(ClientSession& session, const message::SessionPaused& answer);  // asked at last
  // Its life has ended. True if it was being replaced for what is a client's.
  [[nodiscard]] bool life_ended(const ManagedExecutor& executor);
  [[nodiscard]] bool has(ExecutorId executor) const { return drains_.contains(executor); }
  [[nodiscard]] bool has_any(House house) const;
  void clear() { drains_.clear(); }

 private:
  struct Drain {
    EventLoop::Clock::time_point until;
    bool is_a_clients = false;
    bool quiesced = false;
    std::uint64_t order = 0;          // as SessionRelocation::order; 0: sessions have not been asked
    std::set<std::uint64_t> awaited;  // sessions
    EventLoop::Timer timer;
  };
  void check(ManagedExecutor& executor);
  void ask_sessions(ManagedExecutor& executor, Drain& drain);

  EventLoop& loop_;
  const SessionLimits& limits_;
  SessionTable& sessions_;
  std::map<ExecutorId, Drain> drains_;
  std::uint64_t last_order_ = 0;  // to pause
};

}  // namespace mpsshim::broker::control
