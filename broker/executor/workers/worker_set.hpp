// SPDX-License-Identifier: Apache-2.0
// All workers of an executor, and which of them has a session. A session begins with the first; later workers give theirs away
// (worker_placement.hpp). Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "broker/executor/context/parts.hpp"
#include "broker/executor/workers/worker.hpp"
#include "broker/executor/workers/worker_placement.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class Session;

class WorkerSet {
 public:
  // Starts `count` threads with the executor's context current; QuietWindow was made for as many. Without threads: see turn().
  WorkerSet(ExecutorParts& parts, unsigned count, bool has_threads = true);
  ~WorkerSet();

  // Gives the session to the first worker.
  void add(const std::shared_ptr<Session>& session);
  // Takes a session down without blocking; `closed` is called, from the window's thread, when nothing of it is left in the driver.
  // An unknown id calls `closed` at once.
  void close(std::uint64_t session, std::function<void()> closed);
  // Session::pause, Session::rest and Session::resume on the worker that has the session. An unknown id gets CUDA_ERROR_INVALID_HANDLE.
  void rest(std::uint64_t session, std::uint32_t flags, std::function<void(CUresult)> answer);
  void pause(std::uint64_t session, bool without_variables, std::function<void(CUresult)> answer);
  void resume(std::uint64_t session);
  void give_heap(std::uint64_t session);  // Session::heap_given likewise
  // Session::provision, likewise.
  void provision(const message::SessionProvision& wanted, std::function<void(CUresult, std::uint32_t)> answer);
  // Session::is_movable, asked by that worker. An unknown one is not.
  void ask_whether_movable(std::uint64_t session, std::function<void(bool)> answer);
  // A worker's own thread gives a session of its own away that takes so much of a worker's time: to its home, or to one of the others, as
  // best_place() says, once it has left its home only where is_relief() says so. False, and nothing has changed: the session is being closed, or
  // there is no better place. True: the caller no longer touches it.
  [[nodiscard]] bool move(const std::shared_ptr<Session>& session, Placement to, unsigned percent, Worker::Clock::time_point now);
  // The same, to this worker.
  [[nodiscard]] bool move_to(const std::shared_ptr<Session>& session, unsigned worker);
  // The index of the worker that has a session; nullopt: none has.
  [[nodiscard]] std::optional<unsigned> worker_of(std::uint64_t session);
  // The worker with a context of its own that has the fewest sessions that wait often, and room for so many streams there; if one that has
  // `waiting` of them has too many.
  [[nodiscard]] std::optional<unsigned> better_home(std::size_t waiting, std::size_t streams, Worker::Clock::time_point now) const;
  // Of that worker's time, for what is not of sessions that wait after every few launches.
  [[nodiscard]] unsigned others_percent(unsigned worker, Worker::Clock::time_point now) const { return workers_[worker]->others_percent(now); }
  // For QuietWindow::set_on_open: workers look at their queues again.
  void wake_all();
  // For tests that say when, of a set without threads: a turn of each worker, in the caller's thread.
  void turn();
  [[nodiscard]] std::size_t count() const { return workers_.size(); }
  // `done` is called by one of them once each has ended what it was at: it has seen what was stored before.
  void after_this_turn(std::function<void()> done);

 private:
  struct Placed {
    std::shared_ptr<Session> session;
    Worker* worker = nullptr;
  };
  [[nodiscard]] std::shared_ptr<Session> find(std::uint64_t session);
  [[nodiscard]] Worker* find_place(const Worker& from, unsigned percent, Worker::Clock::time_point now) const;
  [[nodiscard]] static bool hand_over(Placed& placed, Worker& target);  // with mutex_ held

  const ExecutorParts& parts_;
  Mutex mutex_;
  std::map<std::uint64_t, Placed> sessions_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Worker>> workers_;  // last: their threads use the rest
};

}  // namespace mpsshim::broker
