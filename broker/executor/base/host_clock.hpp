// SPDX-License-Identifier: Apache-2.0
// Where the GPU's clock, by which the driver times events, stands against the host's steady clock: an event is recorded at once in a stream of
// its own, and the host's time taken before it and when it is seen to be complete. The closest of a few tries counts; the answer is within
// half of what lies between the two. Any thread; takes as long as a few event records, 50 ms at most.
#pragma once

#include <cstdint>

#include "broker/executor/base/event_pool.hpp"
#include "broker/executor/base/issue_lock.hpp"

namespace mpsshim::broker {

// A moment known to both clocks.
struct TimeBase {
  PointRef point;  // empty: none could be had
  std::int64_t host_ns = 0;
};

class HostClock {
 public:
  HostClock(const Driver& driver, EventPool& events, IssueLock& issue_lock) : driver_(driver), events_(events), issue_lock_(issue_lock) {}
  HostClock(const HostClock&) = delete;

  // Before anything else is loaded or served, as in every life. Without the stream there are no bases.
  void open();
  [[nodiscard]] TimeBase base();

 private:
  const Driver& driver_;
  EventPool& events_;
  IssueLock& issue_lock_;
  CUstream stream_ = nullptr;
};

}  // namespace mpsshim::broker
