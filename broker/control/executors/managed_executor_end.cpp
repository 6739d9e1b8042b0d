// SPDX-License-Identifier: Apache-2.0
// The end of a life of an executor: how it is known, what it leaves, and what follows.
#include <chrono>
#include <utility>

#include "broker/control/executors/driver_choice.hpp"
#include "broker/control/executors/managed_executor.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

using std::chrono::milliseconds;

namespace {

constexpr std::size_t kDeathsForFault = 5;
constexpr std::chrono::seconds kDeathWindow{10};
constexpr milliseconds kStandstillLook{1};

}  // namespace

void ManagedExecutor::expect_fault(const XidLine& line) {
  if (state_ != ExecutorState::active || report_.cause == DeathReport::Cause::fault) return;  // the driver has told of it
  if (line.number == kXidStopped) trap_sense_.begin(serving_->calls(), [this, told = line.text] { found_trap(told); });
  if (expectation_ || has_next()) return;
  log_info("Executor {} (pid {}): the kernel log tells of a fault; the next executor is started before the driver reports it.", label_, pid());
  prepare_next();
  expectation_ = loop_.after(settings_.report_limit, [this] {
    expectation_.reset();
    log_info("Executor {} (pid {}): the driver has reported no fault within {} ms; the next executor is not needed.", label_, pid(),
             settings_.report_limit.count());
    drop_next();
  });
}

// The driver would report it in the end, and until then nobody could take over. What others still run has to be off the GPU first: that is so once
// the process is gone.
void ManagedExecutor::found_trap(const std::string& told) {
  report_ = {DeathReport::Cause::fault,
             CUDA_ERROR_LAUNCH_FAILED,
             0,
             fmt::format("the kernel log tells of {}, and the driver has not said within {} ms of what kind it is: a trap", told,
                         TrapSense::kQueryLimit.count()),
             {},
             -1,
             {}};
  fault_tick_ = progress_tick();
  end_noticed_at_ = EventLoop::Clock::now();
  if (!may_linger()) return serving_->kill();
  serving_->halt();
  await_standstill();
}

// Its workers may take records out of rings until its last thread stands, and who is busy is decided by what they have taken. A thread that is in the
// kernel at the driver's will comes to stand later, and takes nothing before.
void ManagedExecutor::await_standstill() {
  const auto waited = EventLoop::Clock::now() - end_noticed_at_;
  if (serving_->stands_still()) return give_up_life();
  if (waited >= settings_.standstill_limit) {
    log_info("Executor {} (pid {}): a thread of it does not stand still after {} ms.", label_, pid(), settings_.standstill_limit.count());
    return give_up_life();
  }
  limit_ = loop_.after(kStandstillLook, [this] { await_standstill(); });
}

void ManagedExecutor::died() {
  if (report_.cause != DeathReport::Cause::fault) end_noticed_at_ = EventLoop::Clock::now();
  serving_->drain();
  if (const auto call = serving_->calls().crashed(); call && report_.cause == DeathReport::Cause::crash) {
    report_.named_session = call->session;
    report_.was_compiling = call->name.index() == CallName("compiling an image").index();
    report_.text =
        fmt::format("it crashed in {} for {}", call->name.text(), call->session == 0 ? "no session" : fmt::format("session {}", call->session));
  }
  end_life(fmt::format("Executor {} (pid {}) {}", label_, pid(), serving_->reap()), false);
}

// Taking down a process that has lost its context holds up other processes' driver calls for some 300 ms. So it stands still while a warm
// standby takes over, unless work of it may still be running.
bool ManagedExecutor::may_linger() const {
  return serving_ && standby() != nullptr && !quitting_ && running_streams(serving_->progress().table, 0).size() <= 1;
}

void ManagedExecutor::give_up_life() {
  serving_->drain();
  end_life(fmt::format("Executor {} (pid {}) lost its context", label_, pid()), true);
}

void ManagedExecutor::end_life(const std::string& end, bool fades) {
  const LogSubject subject(log_user());
  limit_.reset();
  call_look_.reset();
  expectation_.reset();
  trap_sense_.end();
  has_heap_remains_ = false;
  const bool was_ready = state_ == ExecutorState::active || state_ == ExecutorState::draining;
  const bool is_fault = report_.cause == DeathReport::Cause::fault;
  std::set<std::uint64_t> in_flight;
  if (serving_) {
    const ProgressFile& progress = serving_->progress();
    if (is_fault) {
      // The CPU driver writes no word behind work that has faulted.
      const bool is_exact = is_cpu_driver(driver());
      const auto heard = owner_.fault_heard(last_pid_);
      in_flight = busy_sessions(progress.table, is_exact ? LateEnds{fault_tick_} : late_ends(progress.table, fault_tick_, report_.error, heard));
      const LateEnds suspect = is_exact ? LateEnds{fault_tick_} : suspect_ends(progress.table, fault_tick_, report_.error, heard);
      report_.work = work_under_way(progress, suspect);
      for (const std::string& line : streams_under_way(progress, suspect, fault_tick_)) log_server(last_pid_, "{}.", line);
    } else {
      in_flight = busy_sessions(progress.table);
      report_.work = work_under_way(progress);
    }
  }
  report_.pid = last_pid_;
  if (serving_ && report_.error == CUDA_ERROR_ASSERT) report_.assertions = serving_->assertions();
  if (fades) {
    const milliseconds linger = may_linger() ? settings_.linger : milliseconds(0);
    fading_.add(std::move(serving_), label_, linger);
  }
  serving_.reset();
  blocking_.clear();
  if (quitting_) {
    state_ = ExecutorState::stopped;
    return owner_.executor_stopped(*this);
  }
  state_ = ExecutorState::starting;
  bool is_somebodys = false;
  if (was_ready) {
    const char* what = report_.text.empty() ? "no fault was reported" : report_.text.c_str();
    if (report_.cause == DeathReport::Cause::replaced && report_.text.empty()) what = "it is replaced";
    log_warning("{}: {}.", end, what);
    is_somebodys = owner_.executor_died(*this, report_, in_flight);
  }
  if (std::exchange(retiring_, false)) {
    state_ = ExecutorState::stopped;
    return owner_.executor_stopped(*this);
  }
  if (std::exchange(renewing_, false)) return start();
  start_again(was_ready, is_somebodys, end);
}

// What a client is to blame for, or one of several, counts against their programs (Quarantine); only deaths that nobody explains make the service
// pause.
void ManagedExecutor::start_again(bool was_ready, bool is_somebodys, const std::string& why) {
  if (!was_ready && !has_served_) return try_next_driver(why);
  if (!was_ready) log_error("{} before it was ready again. {}", why, std::exchange(refusal_, {}));
  if (is_somebodys) return start();
  const auto now = EventLoop::Clock::now();
  deaths_.push_back(now);
  while (now - deaths_.front() > kDeathWindow) deaths_.pop_front();
  if (deaths_.size() < kDeathsForFault) return start();
  deaths_.clear();
  state_ = ExecutorState::fault;
  log_error(
      "Executor {} died {} times within {} s without a client to blame and is not started again for {} ms; clients with a session wait, new ones get "
      "CUDA_ERROR_MPS_SERVER_NOT_READY.",
      label_, kDeathsForFault, kDeathWindow.count(), settings_.retry_delay.count());
  limit_ = loop_.after(settings_.retry_delay, [this] { start(); });
}

void ManagedExecutor::try_next_driver(const std::string& why) {
  const std::string reason = refusal_.empty() ? fmt::format("{}: {} before it was ready", driver(), why) : refusal_;
  refusal_.clear();
  if (driver_ + 1 < settings_.drivers.size()) {
    log_info("Executor {} goes on to the next driver, {}, because of {}.", label_, settings_.drivers[driver_ + 1], reason);
    ++driver_;
    return start();
  }
  state_ = ExecutorState::fault;
  owner_.executor_cannot_start(*this, reason);
}

}  // namespace mpsshim::broker::control
