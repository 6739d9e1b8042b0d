// SPDX-License-Identifier: Apache-2.0
// What an executor's next life, its standby, or another executor is to load again, in which order: entries of the load log (ImageStore), told one by
// one; and whose copy of an image is whose, with the variables that a session is to have again.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/images/image_store.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "broker/control_messages.hpp"

namespace mpsshim::broker::control {

class LoadReplays {
 public:
  LoadReplays(EventLoop& loop, const SessionLimits& limits, const SessionTable& sessions, const ExecutorPool& pool, ImageStore& images)
      : loop_(loop), limits_(limits), sessions_(sessions), pool_(pool), images_(images) {}

  void noted(ManagedExecutor& executor, const message::ModuleNote& note);  // it has loaded, or made, what stands there
  // A life that has been told nothing yet: what nobody needs leaves the log. Then what it has not been told yet.
  void begin(const ManagedExecutor& executor, ExecutorInstance& life);
  void replay(const ManagedExecutor& executor, ExecutorInstance& life);
  void feed_standby(const ManagedExecutor& executor);
  void life_ended(const ManagedExecutor& executor) { standby_feeds_.erase(executor.id()); }
  // What the session has, and whatever was loaded before it.
  void copy_log(const ClientSession& session, const ManagedExecutor& from, const ManagedExecutor& to);
  // Of images, that are kept there for its variables.
  void release_copies(const ClientSession& session, ManagedExecutor& executor);
  void forget_variables(ClientSession& session);  // it does not come back for them

 private:
  using CopyOwners = std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>;  // {image, copy}: the session
  static void add_copies_of(const ClientSession& session, CopyOwners& owners);
  [[nodiscard]] CopyOwners copy_owners(const ManagedExecutor& executor) const;
  [[nodiscard]] bool comes_after_restart(const ClientSession& session, const ManagedExecutor& executor) const;
  void renew_standbys();
  void shorten_log(const ManagedExecutor& executor);
  void reserve_fed(const ManagedExecutor& executor, ExecutorInstance& life) const;

  EventLoop& loop_;
  const SessionLimits& limits_;
  const SessionTable& sessions_;
  const ExecutorPool& pool_;
  ImageStore& images_;
  std::map<ExecutorId, EventLoop::Timer> standby_feeds_;  // due: what was loaded of late
};

}  // namespace mpsshim::broker::control
