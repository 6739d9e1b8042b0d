// SPDX-License-Identifier: Apache-2.0
// The threads that serve sessions. A worker visits its sessions in turn, a quantum each: copies records out of the ring, dispatches them,
// lets the session's streams issue, and writes progress when there is nothing else to do. It never waits for the GPU, and sleeps in epoll
// when its rings are dry. From time to time it gives sessions away, to where they are served better (worker_placement.hpp).
//
// Threads: the loop belongs to the worker's own thread, `post` to everybody.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "broker/executor/context/parts.hpp"
#include "broker/executor/sessions/session_owner.hpp"
#include "broker/executor/streams/gathering.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/executor/workers/idle_time.hpp"
#include "broker/executor/workers/look_out.hpp"
#include "broker/executor/workers/worker_placement.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class Session;
class WorkerSet;

class Worker final : public SessionOwner {
 public:
  using Clock = std::chrono::steady_clock;

  // Without a thread its turns come by turn(): for tests that say when.
  Worker(ExecutorParts& parts, WorkerSet& set, unsigned index, bool has_thread = true);
  Worker(const Worker&) = delete;
  ~Worker();  // stops the thread; sessions still held are dropped

  void add(std::shared_ptr<Session> session);
  // Counts a session that is gone or given away.
  void subtract() { load_.fetch_sub(1, std::memory_order_relaxed); }
  // Runs `act` in the worker's thread.
  void post(std::function<void()> act) override;
  void wake() const;
  // Mail, then a visit to each session.
  void turn();
  [[nodiscard]] unsigned index() const { return index_; }
  [[nodiscard]] std::size_t load() const { return load_.load(std::memory_order_relaxed); }
  // Sessions that waited after every few launches, when it last looked; none if that was long ago.
  [[nodiscard]] std::size_t waiting(Clock::time_point now) const;
  // Of its time, for what is not of sessions that wait after every few launches, likewise.
  [[nodiscard]] unsigned others_percent(Clock::time_point now) const;
  void expect_waiting() { waiting_.fetch_add(1, std::memory_order_relaxed); }  // one more is on its way
  // Of its time, in which it has something to do, likewise.
  [[nodiscard]] unsigned work_percent(Clock::time_point now) const;
  void expect_work(unsigned percent) { work_percent_.fetch_add(percent, std::memory_order_relaxed); }  // is on its way

 private:
  struct Visit {
    bool worked = false;         // records were read or operations issued
    bool polls = false;          // something waits for the GPU or a window: do not sleep long
    bool lacks_credit = false;   // that something is the next launch: not even that long
    bool awaits_fences = false;  // a client waits, and is told by this worker
    bool gathers = false;        // launches wait for more of them: do not sleep
  };

  void loop();
  [[nodiscard]] bool run_mailbox();  // false: there is more
  [[nodiscard]] Visit visit_all();
  [[nodiscard]] Visit visit(Session& session);
  [[nodiscard]] bool read_ring(Session& session);
  [[nodiscard]] bool write_progress();
  void issue(Session& session, Visit& visit);
  void await_interrupt(Session& session);
  void look_for_owed(Session& session);
  void drop(std::size_t index);  // one of sessions_, which is over or another worker's
  void start_watching(const std::shared_ptr<Session>& session);
  void rebalance();
  [[nodiscard]] unsigned note_others(unsigned percent);
  unsigned note_work(unsigned busy_percent, Clock::duration locked, Clock::time_point now, Clock::duration since);
  void scatter();
  [[nodiscard]] bool find_better_home(const std::shared_ptr<Session>& session, std::size_t waiting);
  void idle(Visit& visit);
  [[nodiscard]] bool prepare_sleep(Visit& visit);
  void sleep(const Visit& visit, Clock::time_point now);

  ExecutorParts& parts_;
  WorkerSet& set_;
  const unsigned index_;
  QuietWindow::Gate& gate_;
  const std::chrono::microseconds spin_;
  proto::FileDescriptor epoll_;
  proto::FileDescriptor wake_event_;
  Mutex mutex_;
  std::vector<std::function<void()>> mailbox_ GUARDED_BY(mutex_);
  std::deque<std::function<void()>> mail_;  // taken out of it, and not dealt with yet
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> load_{0};
  std::vector<std::shared_ptr<Session>> sessions_;
  std::vector<std::byte> batch_;
  std::chrono::microseconds turn_{150};  // how long a session's turn is at the moment
  std::atomic<std::size_t> waiting_{0};
  std::chrono::nanoseconds time_of_gone_{0};  // turn_time of sessions that have ended since rebalance() looked last
  unsigned others_eighths_ = 0;               // eight times the mean of what rebalance() saw of others_percent()
  std::atomic<unsigned> others_percent_{0};
  std::atomic<unsigned> work_percent_{0};
  TimeShortage shortage_;
  bool has_gathered_ = false;      // since the last look
  Clock::time_point relieved_{};   // gave a session on that was not at home
  std::optional<RunDelay> delay_;  // of its thread
  std::atomic<Clock::time_point> rebalanced_{Clock::time_point{}};
  unsigned turns_ = 0;
  std::minstd_rand scattering_;  // Stress::move_ms
  std::chrono::microseconds pause_{};
  IdleTime idle_;
  LookOut look_out_;
  std::thread thread_;
};

}  // namespace mpsshim::broker
