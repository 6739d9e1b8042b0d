// SPDX-License-Identifier: Apache-2.0
// Makes a green context current for a while, under its lock, since one thread at a time may have it current. The driver changes nodes that were
// added under one only where it is current, whatever context their parameters name (H200, driver 580: CUDA_ERROR_INVALID_VALUE otherwise).
// None leaves the executor's, which is current in every thread, and takes no lock.
#pragma once

#include <mutex>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/issue_lock.hpp"

namespace mpsshim::broker {

class ScopedContext {
 public:
  ScopedContext(const Driver& driver, CUcontext green, IssueLock& issue_lock) : driver_(driver) {
    if (green != nullptr) push(green, issue_lock);
  }
  explicit ScopedContext(const Driver& driver) : driver_(driver) {}  // the executor's
  ScopedContext(const ScopedContext&) = delete;
  ~ScopedContext() {
    CUcontext popped = nullptr;
    if (is_pushed_) (void)driver_->cuCtxPopCurrent_v2(&popped);
  }

 private:
  void push(CUcontext green, IssueLock& issue_lock) {
    lock_ = std::unique_lock(issue_lock);
    is_pushed_ = driver_->cuCtxPushCurrent_v2(green) == CUDA_SUCCESS;
  }

  const Driver& driver_;
  std::unique_lock<IssueLock> lock_;
  bool is_pushed_ = false;
};

}  // namespace mpsshim::broker
