// SPDX-License-Identifier: Apache-2.0
// Forces what Stress asks for, and reports now and then what has come of it. Owned by Executor; one thread of its own, none where nothing is asked.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

struct ExecutorParts;

class StressThread {
 public:
  explicit StressThread(ExecutorParts& parts);
  StressThread(const StressThread&) = delete;
  ~StressThread();

 private:
  void loop();
  void open_window();
  void report() REQUIRES(mutex_);

  ExecutorParts& parts_;
  std::atomic<bool> is_asked_{false};  // for a window that has not been yet
  std::array<std::uint64_t, 4> reported_ GUARDED_BY(mutex_){};
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace mpsshim::broker
