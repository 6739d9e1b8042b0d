// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/host_clock.hpp"

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kTries = 8;
constexpr std::chrono::microseconds kCloseEnough{12};  // what a record and its query take when nothing comes between
constexpr std::chrono::milliseconds kLongestLook{50};

// False: it did not come in time, or there was an error.
bool wait_for(const Driver& driver, CUevent event, Clock::time_point until) {
  for (;;) {
    const CUresult result = driver->cuEventQuery(event);
    if (result != CUDA_ERROR_NOT_READY) return result == CUDA_SUCCESS;
    if (Clock::now() > until) return false;
    std::this_thread::yield();
  }
}

}  // namespace

void HostClock::open() {
  const CUresult result = driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) return;
  stream_ = nullptr;
  log_warning("Times of events do not outlive this executor: it has no stream to take the time in ({})", driver_.describe(result));
}

TimeBase HostClock::base() {
  TimeBase best;
  Clock::duration closest = Clock::duration::max();
  const Clock::time_point until = Clock::now() + kLongestLook;
  for (unsigned tries = 0; stream_ != nullptr && tries < kTries && closest > kCloseEnough; ++tries) {
    PointRef point;
    if (events_.take(true, point) != CUDA_SUCCESS) break;
    Clock::time_point before;
    {
      const std::lock_guard lock(issue_lock_);
      before = Clock::now();
      if (driver_->cuEventRecord(point->handle, stream_) != CUDA_SUCCESS) break;
    }
    if (!wait_for(driver_, point->handle, until)) break;
    const Clock::duration took = Clock::now() - before;
    if (took >= closest) continue;
    closest = took;
    const auto at = std::chrono::duration_cast<std::chrono::nanoseconds>((before + took / 2).time_since_epoch());
    best = {std::move(point), at.count()};
  }
  return best;
}

}  // namespace mpsshim::broker
