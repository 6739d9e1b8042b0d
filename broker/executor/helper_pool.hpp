// SPDX-License-Identifier: Apache-2.0
// Threads for what must not hold a worker: mapping and registering segments, reading images, compiling. Jobs run in the order they came,
// with the executor's context current; a job may wait for the control process, with a limit of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mpsshim::broker {

class HelperPool {
 public:
  // `enter` is called once in each thread (it makes the context current).
  HelperPool(unsigned threads, std::function<void()> enter);
  HelperPool(const HelperPool&) = delete;
  ~HelperPool();  // finishes what is queued

  void submit(std::function<void()> job);

 private:
  void loop();
  std::function<void()> enter_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mpsshim::broker
