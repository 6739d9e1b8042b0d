// SPDX-License-Identifier: Apache-2.0
// All executors, by GPU and user: the broker's own user has a first one of each GPU, which is started when first asked for and stays; other users
// have theirs while they have clients; further ones serve those that a kernel without end keeps from being served by the first. All but the one
// that stays end when nobody has needed them for a while. Who serves whom by users is ExecutorId::user: no executor serves two.
// Knows no sessions: who may be where is SessionManager's business, which owns this. The control process's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "broker/control/executors/managed_executor.hpp"

namespace mpsshim::broker::control {

struct PoolLimits {
  unsigned executors = 2;                           // of one GPU and user, the first one included
  std::chrono::milliseconds idle{10'000};           // a further one without sessions ends after so long
  std::chrono::milliseconds refusal_pause{60'000};  // after one could not be started; for good where the GPU takes one process only
};

class ExecutorPool {
 public:
  using Suits = std::function<bool(const ManagedExecutor&)>;
  ExecutorPool(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorSettings& settings, const PoolLimits& limits, ExecutorOwner& owner);

  // The device's own. Starts it if this is the first time. Those of further devices use the driver that serves device 0.
  ManagedExecutor& first(unsigned device);
  // A first executor again, as it was in the control process before this one. That of device 0 and kHome first.
  void resume(ExecutorId id, std::uint64_t epoch, const std::string& driver, const proto::DriverFacts& facts, const ServerNumber& number);
  // Of that user's the first that is not blocked and suits; else a new one, if one more may be had; else nullptr.
  // The new one starts at once, or without a context (ManagedExecutor::start_without_context).
  enum class Begin : std::uint8_t { at_once, without_context };
  ManagedExecutor* choose(unsigned device, uid_t user, const Suits& suits, Begin begin = Begin::at_once);
  // Of that user's the first that suits, blocked or not; nullptr: there is none.
  [[nodiscard]] ManagedExecutor* any(unsigned device, uid_t user, const Suits& suits) const;

  // Whether a process waits to be that user's next further executor, which begins sooner by that: a driver takes hundreds of milliseconds to
  // initialise while a context that has faulted is taken down.
  void keep_spare(unsigned device, uid_t user, bool wanted);
  void drop_spares();

  // Nobody needs `executor` now; if that is so when the time is over (`unused` is asked), it ends. Nothing happens to one that stays.
  void release(ManagedExecutor& executor, std::function<bool()> unused, bool at_once = false);
  // One could not be started: it is forgotten, and none is tried for that user for a while.
  void refused(ManagedExecutor& executor, const std::string& why);
  // Once stopped. It is destroyed in the next turn of the loop.
  void forget(ManagedExecutor& executor);
  // For restarts: executors that have no next life ready are asked to prepare it, once each, those too that came since the last call; true once all
  // have one.
  [[nodiscard]] bool prepare_next_lives(std::optional<uid_t> user = {});  // of that user's; nothing: of all
  void quit();                                                            // all end, and none is started any more
  [[nodiscard]] bool all_stopped() const;
  [[nodiscard]] const std::map<ExecutorId, std::unique_ptr<ManagedExecutor>>& all() const { return executors_; }

 private:
  [[nodiscard]] ManagedExecutor& add(ExecutorId id, const ExecutorSettings& settings, Begin begin);
  [[nodiscard]] ManagedExecutor* add_another(unsigned device, uid_t user, Begin begin);
  [[nodiscard]] ExecutorSettings further_settings(unsigned device);
  [[nodiscard]] ExecutorId next_id(unsigned device, uid_t user) const;
  [[nodiscard]] bool may_try(unsigned device, uid_t user);

  EventLoop& loop_;
  ExecutorLauncher& launcher_;
  FadingExecutors fading_;
  const ExecutorSettings settings_;
  const PoolLimits limits_;
  ExecutorOwner& owner_;
  bool quitting_ = false;
  std::map<ExecutorId, std::unique_ptr<ManagedExecutor>> executors_;
  std::map<std::pair<unsigned, uid_t>, EventLoop::Clock::time_point> refused_until_;  // by device and user
  std::map<ExecutorId, EventLoop::Timer> idle_;
  std::map<std::pair<unsigned, uid_t>, std::unique_ptr<ManagedExecutor>> spares_;  // that have not begun; at most one of a device and user
};

}  // namespace mpsshim::broker::control
