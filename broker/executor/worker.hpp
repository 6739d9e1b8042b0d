// SPDX-License-Identifier: Apache-2.0
// The threads that serve sessions. A worker visits its sessions in turn, a quantum each: copies records out of the ring, dispatches them,
// lets the session's streams issue, and writes progress when there is nothing else to do. It never waits for the GPU, and sleeps in epoll
// when its rings are dry. From time to time it gives sessions away, to where they are served better (worker_placement.hpp).
//
// Threads: WorkerSet's functions may be called from any thread; a Worker's loop belongs to its thread, `post` to everybody.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "broker/executor/parts.hpp"
#include "broker/executor/quiet_window.hpp"
#include "broker/executor/worker_placement.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class Session;
class WorkerSet;

class Worker {
 public:
  using Clock = std::chrono::steady_clock;

  Worker(ExecutorParts& parts, WorkerSet& set, unsigned index);
  Worker(const Worker&) = delete;
  ~Worker();  // stops the thread; sessions still held are dropped

  void add(std::shared_ptr<Session> session);
  // Counts a session that is gone or given away.
  void subtract() { load_.fetch_sub(1, std::memory_order_relaxed); }
  // Runs `act` in the worker's thread.
  void post(std::function<void()> act);
  void wake() const;
  [[nodiscard]] unsigned index() const { return index_; }
  [[nodiscard]] std::size_t load() const { return load_.load(std::memory_order_relaxed); }
  // Sessions that waited after every few launches, when it last looked; none if that was long ago.
  [[nodiscard]] std::size_t waiting(Clock::time_point now) const;
  void expect_waiting() { waiting_.fetch_add(1, std::memory_order_relaxed); }  // one more is on its way

 private:
  struct Visit {
    bool worked = false;         // records were read or operations issued
    bool polls = false;          // something waits for the GPU or a window: do not sleep long
    bool lacks_credit = false;   // that something is the next launch: not even that long
    bool awaits_fences = false;  // a client waits, and is told by this worker
  };

  void loop();
  void run_mailbox();
  [[nodiscard]] Visit visit_all();
  [[nodiscard]] Visit visit(Session& session);
  [[nodiscard]] bool read_ring(Session& session);
  void issue(Session& session, Visit& visit);
  void await_interrupt(Session& session);
  void drop(std::size_t index);  // one of sessions_, which is over or another worker's
  void start_watching(const std::shared_ptr<Session>& session);
  void rebalance();
  void find_better_home(const std::shared_ptr<Session>& session, std::size_t waiting);
  [[nodiscard]] bool prepare_sleep(Visit& visit);
  void sleep(const Visit& visit, Clock::duration idle);

  ExecutorParts& parts_;
  WorkerSet& set_;
  const unsigned index_;
  QuietWindow::Gate& gate_;
  const std::chrono::microseconds spin_;
  proto::FileDescriptor epoll_;
  proto::FileDescriptor wake_event_;
  std::mutex mutex_;
  std::vector<std::function<void()>> mailbox_;
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> load_{0};
  std::vector<std::shared_ptr<Session>> sessions_;
  std::vector<std::byte> batch_;
  std::atomic<std::size_t> waiting_{0};
  std::atomic<Clock::time_point> rebalanced_{Clock::time_point{}};
  unsigned turns_ = 0;
  std::chrono::microseconds pause_{};
  std::thread thread_;
};

class WorkerSet {
 public:
  // Starts `count` threads with the executor's context current; QuietWindow was made for as many.
  WorkerSet(ExecutorParts& parts, unsigned count);
  ~WorkerSet();

  // Gives the session to the first worker.
  void add(const std::shared_ptr<Session>& session);
  // Takes a session down without blocking; `closed` is called, from the window's thread, when nothing of it is left in the driver.
  // An unknown id calls `closed` at once.
  void close(std::uint64_t session, std::function<void()> closed);
  // Session::pause, Session::rest and Session::resume on the worker that has the session. An unknown id gets CUDA_ERROR_INVALID_HANDLE.
  void rest(std::uint64_t session, bool despite_variables, std::function<void(CUresult)> answer);
  void pause(std::uint64_t session, std::function<void(CUresult)> answer);
  void resume(std::uint64_t session);
  // A worker's own thread gives a session of its own away: to its home, or to another worker that has the fewest. False, and nothing has
  // changed: the session is being closed, or there is no better place. True: the caller no longer touches it.
  [[nodiscard]] bool move(const std::shared_ptr<Session>& session, Placement to);
  // The index of the worker that has a session; nullopt: none has.
  [[nodiscard]] std::optional<unsigned> worker_of(std::uint64_t session);
  // The worker with a context of its own that has the fewest sessions that wait often, and room for so many streams there; if one that has
  // `waiting` of them has too many.
  [[nodiscard]] std::optional<unsigned> better_home(std::size_t waiting, std::size_t streams, Worker::Clock::time_point now) const;
  // For QuietWindow::set_on_open: workers look at their queues again.
  void wake_all();
  // `done` is called by one of them once each has ended what it was at: it has seen what was stored before.
  void after_this_turn(std::function<void()> done);

 private:
  struct Placed {
    std::shared_ptr<Session> session;
    Worker* worker = nullptr;
  };
  [[nodiscard]] std::shared_ptr<Session> find(std::uint64_t session);

  const ExecutorParts& parts_;
  std::mutex mutex_;
  std::map<std::uint64_t, Placed> sessions_;
  std::vector<std::unique_ptr<Worker>> workers_;  // last: their threads use the rest
};

}  // namespace mpsshim::broker
