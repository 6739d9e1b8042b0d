// SPDX-License-Identifier: Apache-2.0
// Threads for what must not hold a worker: mapping and registering segments, reading images, compiling. A job may wait for the control
// process, with a limit of its own.
// A client's jobs begin in the order they came, and only so many of them run at a time as the pool has threads at rest: a client whose images
// take minutes to compile, or whose requests wait for what never comes, holds up itself. Where all threads are busy and another client has
// a job that may run, a further thread is made, up to a limit; it ends when it has had nothing to do for a while.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace mpsshim::broker {

class HelperPool {
 public:
  static constexpr unsigned kGrowth = 8;  // times the threads at rest: so many at most

  // `threads` stay; with 0 nothing ever runs. `enter` is called once in each thread (it makes the context current).
  HelperPool(unsigned threads, std::function<void()> enter);
  HelperPool(const HelperPool&) = delete;
  ~HelperPool();  // finishes what is queued

  void submit(std::uint64_t session, std::function<void()> job);
  // For tests that say when: the oldest job of a pool without threads, in the caller's. False: there is none.
  bool run_next();

 private:
  struct Job {
    std::uint64_t session = 0;
    std::function<void()> run;
  };
  void loop(bool stays);
  [[nodiscard]] std::deque<Job>::iterator next();
  void start_thread(bool stays);
  void grow();
  void leave();

  const unsigned threads_at_rest_;
  std::function<void()> enter_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::map<std::uint64_t, unsigned> running_;  // by session
  unsigned idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
  std::vector<std::thread> ended_;  // to be joined
};

}  // namespace mpsshim::broker
