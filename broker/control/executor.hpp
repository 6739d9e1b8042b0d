// SPDX-License-Identifier: Apache-2.0
// One executor as the control process sees it, over all its lives: starts it, finds out which driver serves, notices its death, starts
// the next one. What dies with a life and what is to be brought into the next is its owner's business (ExecutorOwner).
//
//   stopped → starting → active → draining → (dead) → starting …          five deaths within ten seconds → fault, a new try after ten more
//
// Owned by ExecutorPool; the control process's thread. What the executor sends is checked only for its form here.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/control/event_loop.hpp"
#include "broker/control/executor_id.hpp"
#include "broker/control/executor_link.hpp"
#include "broker/control/executor_process.hpp"
#include "broker/control/recovery.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker::control {

enum class ExecutorState { stopped, starting, active, draining, fault };
[[nodiscard]] const char* state_name(ExecutorState state);  // as get_server_status prints it

class Executor;

class ExecutorOwner {
 public:
  virtual ~ExecutorOwner() = default;
  virtual void executor_ready(Executor& executor) = 0;
  virtual void executor_sent(Executor& executor, const ExecutorPacket& packet, proto::ReceivedFds& fds) = 0;
  // Dead, its last messages handed on. `busy`: sessions with work in flight. The next life starts after this returns.
  virtual void executor_died(Executor& executor, const DeathReport& report, const std::set<std::uint64_t>& busy) = 0;
  // No driver could be made to serve at all; `why` is for the log and the person who started the broker.
  virtual void executor_cannot_start(Executor& executor, const std::string& why) = 0;
  virtual void executor_stopped(Executor& executor) = 0;  // after quit()
};

struct ExecutorSettings {
  std::vector<std::string> drivers;  // tried in order until one serves, which is then kept
  unsigned workers = 0;
  unsigned connections = 8;
  unsigned module_cache_mib = 1024;
  std::string log_dir;
  std::chrono::milliseconds start_limit{60'000};
  std::chrono::milliseconds quit_limit{1'000};
  std::chrono::milliseconds retry_delay{10'000};
};

class Executor {
 public:
  Executor(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorSettings& settings, ExecutorId id, ExecutorOwner& owner);

  void start();
  void send(const ExecutorPacket& packet, std::span<const int> fds = {});
  void begin_drain();  // no more new work is to be read: Quiesce
  void replace();      // kills this life; executor_died follows with Cause::replaced
  void quit();         // executor_stopped follows

  [[nodiscard]] ExecutorState state() const { return state_; }
  [[nodiscard]] bool is_quitting() const { return quitting_; }
  [[nodiscard]] bool will_retry() const { return state_ == ExecutorState::fault && limit_; }
  [[nodiscard]] ExecutorId id() const { return id_; }
  [[nodiscard]] unsigned device() const { return id_.device; }
  [[nodiscard]] bool is_first() const { return id_.ordinal == 0; }
  [[nodiscard]] const std::string& label() const { return label_; }  // "0"; "0.1": the second one of device 0
  [[nodiscard]] pid_t pid() const { return life_ ? life_->pid : -1; }
  [[nodiscard]] pid_t last_pid() const { return last_pid_; }    // of this life, or of the one before while there is none
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }  // counts lives
  [[nodiscard]] const std::string& driver() const { return settings_.drivers[driver_]; }
  // Copied from the executor's file; empty while no life has been ready.
  [[nodiscard]] const proto::DriverFacts* facts() const { return facts_.get(); }
  [[nodiscard]] std::set<std::uint64_t> busy() const;
  [[nodiscard]] bool is_busy(std::uint64_t session) const;
  [[nodiscard]] bool has_streams(std::uint64_t session) const;
  // What its driver said when it could not be started.
  [[nodiscard]] CUresult refusal() const { return refusal_status_; }

  // A call of `session` got no quiet window: what others run now keeps newcomers away, until it has ended.
  void note_blocked(std::uint64_t session);
  [[nodiscard]] bool is_blocked();

 private:
  [[nodiscard]] const ProgressFile& progress() const { return *reinterpret_cast<const ProgressFile*>(progress_.data()); }
  void arrived(const ExecutorPacket& packet, proto::ReceivedFds& fds);
  void became_ready(const ExecutorPacket& packet);
  [[nodiscard]] bool read_facts();
  void died();
  void give_up_life();
  void end_life(const std::string& end);
  void start_again(bool was_ready, const std::string& why);
  void try_next_driver(const std::string& why);
  void kill();

  EventLoop& loop_;
  ExecutorLauncher& launcher_;
  const ExecutorSettings settings_;
  const ExecutorId id_;
  const std::string label_;
  ExecutorOwner& owner_;

  ExecutorState state_ = ExecutorState::stopped;
  bool quitting_ = false;
  bool has_served_ = false;
  std::size_t driver_ = 0;
  CUresult refusal_status_ = CUDA_SUCCESS;
  std::string refusal_;  // why the last driver that was tried does not serve
  std::uint64_t epoch_ = 0;
  std::unique_ptr<ExecutorLife> life_;
  pid_t last_pid_ = -1;
  std::unique_ptr<ExecutorLink> link_;
  proto::Mapping progress_;
  std::vector<RunningStream> blocking_;
  std::unique_ptr<proto::DriverFacts> facts_;
  DeathReport report_;
  struct Fading {  // replaced already, not yet gone
    ExecutorLife life;
    EventLoop::Watch watch;
  };
  std::list<Fading> fading_;
  EventLoop::Watch death_watch_;
  EventLoop::Timer limit_;  // for coming up, or for going away
  std::deque<EventLoop::Clock::time_point> deaths_;
  EventLoop::Clock::time_point started_at_;
};

}  // namespace mpsshim::broker::control
