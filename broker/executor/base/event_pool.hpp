// SPDX-License-Identifier: Apache-2.0
// The driver's events, made when first needed and used again. One EventPoint is one record: a session's event that is recorded again while
// a wait on its earlier record is still queued gets another point, so a wait never turns into a wait for later work.
// An event may return to the pool while the GPU still waits on it: the driver has taken its state when the wait was issued.
// Thread safe; an EventPoint's flag belongs to the session's worker.
#pragma once

#include <memory>
#include <vector>

#include "broker/driver/driver.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class EventPool;
struct EventPoint;
using PointRef = std::shared_ptr<EventPoint>;

struct EventPoint {
  EventPoint(EventPool& owner, CUevent event, bool timing) : pool(owner), handle(event), has_timing(timing) {}
  EventPoint(const EventPoint&) = delete;
  ~EventPoint();

  EventPool& pool;
  const CUevent handle;
  const bool has_timing;
  PointRef lender;         // the driver's event is this point's: a graph's node records it anew at each launch, of which this point is one
  PointRef behind;         // recorded behind the fence, for waits, where `handle` takes the time in front of it
  bool is_issued = false;  // the record has reached the driver: waits on it may follow
  [[nodiscard]] CUevent awaited() const { return behind ? behind->handle : handle; }
};

class EventPool {
 public:
  explicit EventPool(const Driver& driver) : driver_(driver) {}
  EventPool(const EventPool&) = delete;

  [[nodiscard]] CUresult take(bool timing, PointRef& point);

 private:
  friend struct EventPoint;
  static constexpr std::size_t kMostKept = 16'384;  // of each kind
  void give_back(CUevent event, bool timing);

  const Driver& driver_;
  Mutex mutex_;
  std::vector<CUevent> free_[2] GUARDED_BY(mutex_);  // [has timing]
};

}  // namespace mpsshim::broker
