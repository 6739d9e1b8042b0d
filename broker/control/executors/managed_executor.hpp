// SPDX-License-Identifier: Apache-2.0
// One executor as the control process sees it, over all its lives: starts it, finds out which driver serves, notices its death or that it
// hangs, starts the next one or has a standby take over. What dies with a life and what is to be brought into the next is its owner's business
// (ExecutorOwner).
//
//   stopped → starting → active → draining → (dead) → starting …
//   five unexplained deaths within ten seconds → fault, a new try after ten more
//
// Owned by ExecutorPool; the control process's thread. What the executor sends is checked only for its form here.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/base/executor_id.hpp"
#include "broker/control/executors/executor_instance.hpp"
#include "broker/control/executors/executor_owner.hpp"
#include "broker/control/executors/executor_settings.hpp"
#include "broker/control/executors/server_number.hpp"
#include "broker/control/executors/standby.hpp"
#include "broker/control/faults/kernel_log.hpp"
#include "broker/control/faults/trap_sense.hpp"
#include "broker/control/faults/verdict.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker::control {

enum class ExecutorState { stopped, starting, active, draining, fault };
[[nodiscard]] const char* state_name(ExecutorState state);  // as get_server_status prints it

class ManagedExecutor {
 public:
  ManagedExecutor(EventLoop& loop, ExecutorLauncher& launcher, FadingExecutors& fading, const ExecutorSettings& settings, ExecutorId id,
                  ExecutorOwner& owner);

  void start();
  // Its first life comes as far as it can without a context, which would hold up others that are being made, and waits for make_context().
  void start_without_context();
  void make_context();
  // Instead of either, for now: the process of its first life comes so far and waits. One that dies is followed by another.
  void prepare_first() { standby_.start(settings_.spare_delay, standby_options(StandbyKind::cold)); }
  void drop_first() { standby_.stop(); }  // it does not begin
  // Before start(), in a control process that has taken over from another: what its lives there have shown.
  void resume(std::uint64_t epoch, const std::string& driver, const proto::DriverFacts& facts, const ServerNumber& number);
  void send(const OutgoingMessage& message);
  void begin_drain();  // no more new work is to be read: Quiesce
  void replace();      // kills this life; executor_died follows with Cause::replaced
  void quit();         // executor_stopped follows
  // For restarts. Held, it serves whom it serves and its owner opens nothing new in it.
  void hold();
  void release();
  void prepare_next();  // a process gets as ready to be the next life as the GPU allows beside this one
  [[nodiscard]] bool prepares_next() const { return prepares_next_; }
  void drop_next();      // unless there is always one
  void renew_standby();  // a warm one, which has been told what holds no more; not while a next life is to begin
  // The kernel log tells of a fault of it. The driver's report may take most of a second (docs/experiments/2026-11-22-who-tells-of-a-fault.md), so
  // the process of its next life is started by then; it goes again if no report follows. A trap ends this life without one.
  void expect_fault(const XidLine& line);
  void rule_out_trap() { trap_sense_.rule_out(); }  // the kernel log tells of another kind of fault, of some process
  [[nodiscard]] bool has_next() const;
  void renew();   // as replace(), and it counts as no death
  void retire();  // as renew(), but executor_stopped follows instead of the next life; start() is possible then
  void end_with_life();  // within executor_died: executor_stopped follows instead of the next life

  [[nodiscard]] ExecutorState state() const { return state_; }
  [[nodiscard]] bool is_quitting() const { return quitting_; }
  [[nodiscard]] bool will_retry() const { return state_ == ExecutorState::fault && limit_; }
  [[nodiscard]] ExecutorId id() const { return id_; }
  [[nodiscard]] unsigned device() const { return id_.device; }
  [[nodiscard]] uid_t user() const { return id_.user; }  // whose clients it serves; kHome: its own user's, or everybody's
  [[nodiscard]] uid_t log_user() const { return id_.user == kHome ? geteuid() : id_.user; }
  [[nodiscard]] bool is_first() const { return id_.ordinal == 0; }
  [[nodiscard]] bool is_permanent() const { return is_first() && id_.user == kHome; }  // the device's; all others end when nobody needs them
  [[nodiscard]] const std::string& label() const { return label_; }  // "0"; "0.1": the second one of device 0; "0@1000": of another user
  [[nodiscard]] pid_t pid() const { return serving_ ? serving_->pid() : -1; }
  [[nodiscard]] const ServerNumber& number() const { return number_; }
  [[nodiscard]] pid_t last_pid() const { return last_pid_; }    // of this life, or of the one before while there is none
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }  // counts lives
  [[nodiscard]] const std::string& driver() const { return settings_.drivers[driver_]; }
  // Copied from the executor's file; empty while no life has been ready.
  [[nodiscard]] const proto::DriverFacts* facts() const { return facts_.get(); }
  // In how many parts a life has cut each device's multiprocessors; 0: in none, or none was ready.
  [[nodiscard]] const std::array<std::uint32_t, proto::kMaxDevices>& chunks() const { return chunks_; }
  // The GPU takes one process at a time (compute mode EXCLUSIVE_PROCESS).
  [[nodiscard]] bool is_exclusive() const;
  [[nodiscard]] std::set<std::uint64_t> busy() const;
  [[nodiscard]] std::map<std::uint64_t, std::uint64_t> in_flight() const;  // work_in_flight() of what serves
  [[nodiscard]] bool is_busy(std::uint64_t session) const;
  [[nodiscard]] bool has_streams(std::uint64_t session) const;
  [[nodiscard]] CUresult refusal() const { return refusal_status_; }  // what its driver said when it could not be started
  // In whose driver call it hangs; 0: it does not, or nobody's.
  [[nodiscard]] std::uint64_t blamed() const { return report_.named_session; }
  void note_heap_remains() { has_heap_remains_ = true; }  // clients that have ended may have left memory on the device's heap of this life
  [[nodiscard]] bool has_heap_remains() const { return has_heap_remains_; }

  // The processes that replay the load log: the one that serves, and the standby once it has a context. nullptr: there is none.
  [[nodiscard]] ExecutorInstance* serving() const { return serving_.get(); }
  [[nodiscard]] ExecutorInstance* standby() const;

  // A call of `session` got no quiet window: what others run now keeps newcomers away, until it has ended.
  void note_blocked(std::uint64_t session);
  [[nodiscard]] bool is_blocked();
  struct Blocker {
    RunningStream stream;
    EventLoop::Clock::time_point since;  // when it was first in somebody's way
  };
  // Whose kernels it is blocked by; some may have ended since is_blocked().
  [[nodiscard]] const std::vector<Blocker>& blockers() const { return blocking_; }

 private:
  [[nodiscard]] ExecutorOptions options() const;
  [[nodiscard]] ExecutorOptions standby_options(StandbyKind kind) const;
  void keep_standby();
  void arrived(ReceivedMessage& received);
  void became_ready(const message::Ready& ready);
  void met_fault(const message::Fault& fault);
  void take_over();
  void activate();
  void watch_calls();
  void died();
  void give_up_life();
  void found_trap(const std::string& told);
  void await_standstill();
  [[nodiscard]] bool may_linger() const;
  void end_life(const std::string& end, bool fades);
  void start_again(bool was_ready, bool is_somebodys, const std::string& why);
  void try_next_driver(const std::string& why);

  EventLoop& loop_;
  ExecutorLauncher& launcher_;
  FadingExecutors& fading_;
  const ExecutorSettings settings_;
  const ExecutorId id_;
  const std::string label_;
  ExecutorOwner& owner_;

  ExecutorState state_ = ExecutorState::stopped;
  bool prepares_next_ = false;  // since this life began
  bool awaits_context_ = false;
  bool quitting_ = false;
  bool renewing_ = false;
  bool retiring_ = false;
  bool has_served_ = false;
  bool has_heap_remains_ = false;
  std::size_t driver_ = 0;
  CUresult refusal_status_ = CUDA_SUCCESS;
  std::string refusal_;  // why the last driver that was tried does not serve
  std::uint64_t epoch_ = 0;
  Standby standby_;
  std::unique_ptr<ExecutorInstance> serving_;  // or about to
  pid_t last_pid_ = -1;
  ServerNumber number_;
  std::vector<Blocker> blocking_;
  std::unique_ptr<proto::DriverFacts> facts_;
  std::array<std::uint32_t, proto::kMaxDevices> chunks_{};
  DeathReport report_;
  ProgressTick fault_tick_ = 0;  // when it was made, if it is of a fault
  EventLoop::Timer limit_;       // for coming up, or for going away
  EventLoop::Timer call_look_;
  EventLoop::Timer expectation_;  // of a fault
  TrapSense trap_sense_;
  std::deque<EventLoop::Clock::time_point> deaths_;
  EventLoop::Clock::time_point started_at_;
  EventLoop::Clock::time_point end_noticed_at_;
};

}  // namespace mpsshim::broker::control
