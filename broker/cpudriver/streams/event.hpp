// SPDX-License-Identifier: Apache-2.0
//
// An event: the place in a stream where it was last recorded, and when that place was reached. Any thread may call;
// cuEventRecord replaces the place, waits made before keep the old one.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "broker/cpudriver/streams/scheduler.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

class Event {
 public:
  explicit Event(unsigned flags) : flags_(flags) {}

  bool has_timing() const { return (flags_ & CU_EVENT_DISABLE_TIMING) == 0; }
  bool was_recorded() const;

  void record(const StreamPtr& stream);
  // For a graph that records it: the stamp to be set when the node runs, and the launch's place, behind which it is complete.
  using Clock = std::chrono::steady_clock;
  using Stamp = std::shared_ptr<std::atomic<Clock::rep>>;
  static Stamp new_stamp() { return std::make_shared<std::atomic<Clock::rep>>(0); }
  static void set(const Stamp& stamp);
  void record(Position position, Stamp stamp);
  // The place last recorded; none, which counts as reached, before the first record.
  Position position() const;

  // CUDA_ERROR_NOT_READY while one of them is not reached.
  static CUresult elapsed_ms(const Event& start, const Event& end, float* milliseconds);

 private:
  const unsigned flags_;
  mutable Mutex mutex_;
  Position position_ GUARDED_BY(mutex_);
  Stamp stamp_ GUARDED_BY(mutex_);  // written by the worker that reaches the place, read by cuEventElapsedTime after it is reached
};

}  // namespace mpsshim::cpudriver
