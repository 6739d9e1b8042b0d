// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/event_pool.hpp"

namespace mpsshim::broker {

EventPoint::~EventPoint() {
  if (!lender) pool.give_back(handle, has_timing);
}

CUresult EventPool::take(bool timing, PointRef& point) {
  CUevent event = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (auto& free = free_[timing]; !free.empty()) {
      event = free.back();
      free.pop_back();
    }
  }
  if (event == nullptr) {
    const CUresult result = driver_->cuEventCreate(&event, timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) return result;
  }
  point = std::make_shared<EventPoint>(*this, event, timing);
  return CUDA_SUCCESS;
}

// What a client with very many events leaves is not kept for ever.
void EventPool::give_back(CUevent event, bool timing) {
  {
    std::lock_guard lock(mutex_);
    if (free_[timing].size() < kMostKept) return free_[timing].push_back(event);
  }
  driver_->cuEventDestroy_v2(event);
}

}  // namespace mpsshim::broker
