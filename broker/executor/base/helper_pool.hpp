// SPDX-License-Identifier: Apache-2.0
// Threads for what must not hold a worker: mapping and registering segments, reading images, compiling. A job may wait for the control
// process, with a limit of its own.
// Sessions have turns, a job each, so nobody's thousandth stands in front of another's first.
// A client's jobs begin in the order they came, and only so many of them run at a time as the pool has threads at rest: a client whose images
// take minutes to compile, or whose requests wait for what never comes, holds up itself. Where all threads are busy and another client has
// a job that may run, a further thread is made, up to a limit; it ends when it has had nothing to do for a while.
// Whoever hands in a job waits for nothing: threads are made, and joined, by one more thread that does only that, outside the lock. (A worker that
// made them itself stood for milliseconds wherever mappings of the process were changed meanwhile.)
// Nor do many sessions of one owner take all: the last quarter of those threads is for processes that have no job running, and beyond them there
// are a few for users that have none.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class HelperPool {
 public:
  static constexpr unsigned kGrowth = 8;          // times the threads at rest: so many at most
  static constexpr unsigned kProcessReserve = 4;  // of those one part in so many is for processes that have no job running
  static constexpr unsigned kUserReserve = 8;     // and one part in so many is there besides, for users that have none
  static constexpr std::uint64_t kOfNobody = 0;  // what comes behind a session's end: it finds a thread whatever sessions have under way

  // `threads` stay; with 0 no job of a session ever runs. `enter` is called once in each thread (it makes the context current).
  HelperPool(unsigned threads, std::function<void()> enter);
  HelperPool(const HelperPool&) = delete;
  ~HelperPool();  // finishes what is queued

  // Whose a job is. What of a process is not known stands for itself.
  struct Client {
    Client(std::uint64_t of) : session(of), process(of) {}
    Client(std::uint64_t of, std::uint64_t its_process, std::uint64_t its_user) : session(of), process(its_process), user(its_user) {}
    std::uint64_t session;
    std::uint64_t process;
    std::uint64_t user = 0;
  };
  void submit(const Client& client, std::function<void()> job);
  // For tests that say when: a pool without threads, whose sessions have a job each in turn, run in the caller's. False: there is none.
  static constexpr unsigned kByHand = ~0u;
  bool run_next();

 private:
  struct Queue {  // of a session
    std::uint64_t process = 0;
    std::uint64_t user = 0;
    std::deque<std::function<void()>> jobs;
    unsigned running = 0;
    bool is_ready = false;  // stands in ready_
  };
  void loop(bool stays);
  void make_ready(std::uint64_t session, Queue& queue) REQUIRES(mutex_);
  [[nodiscard]] bool may_run(std::uint64_t session) const REQUIRES(mutex_);
  [[nodiscard]] std::deque<std::uint64_t>::iterator first_that_may_run() REQUIRES(mutex_);
  void count(std::uint64_t session, const Queue& queue, int change) REQUIRES(mutex_);
  [[nodiscard]] std::thread start_thread(bool stays);
  [[nodiscard]] std::vector<std::thread> start_threads(unsigned count);
  void grow() REQUIRES(mutex_);
  void leave() REQUIRES(mutex_);
  void make_threads();  // the maker's

  const bool is_by_hand_;
  const unsigned threads_at_rest_;
  std::function<void()> enter_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, Queue> queues_ GUARDED_BY(mutex_);  // of sessions that have jobs
  std::deque<std::uint64_t> ready_ GUARDED_BY(mutex_);        // those of them that have one to run and not their share, in turn
  // Jobs that run, but for those of nobody: all, and those of processes and users that have any.
  unsigned running_ GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, unsigned> processes_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, unsigned> users_ GUARDED_BY(mutex_);
  std::uint64_t last_by_hand_ GUARDED_BY(mutex_) = 0;
  unsigned idle_ GUARDED_BY(mutex_) = 0;     // those that are being made included
  unsigned ordered_ GUARDED_BY(mutex_) = 0;  // threads that the maker has yet to make
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
  std::vector<std::thread> ended_ GUARDED_BY(mutex_);  // the maker joins them
  CondVar maker_;
  std::thread maker_thread_;  // runs make_threads(); none in a pool without threads
};

}  // namespace mpsshim::broker
