// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/streams/event.hpp"

namespace mpsshim::cpudriver {

bool Event::was_recorded() const {
  const std::lock_guard lock(mutex_);
  return stamp_ != nullptr;
}

void Event::record(const StreamPtr& stream) {
  Stamp stamp = new_stamp();
  Operation operation;
  operation.is_instant = true;
  operation.run = [stamp] {
    set(stamp);
    return CUDA_SUCCESS;
  };
  const std::lock_guard lock(mutex_);  // two threads recording one event: the later place belongs to the later stamp
  position_ = Scheduler::get().submit(stream, std::move(operation));
  stamp_ = std::move(stamp);
}

void Event::set(const Stamp& stamp) { stamp->store(Clock::now().time_since_epoch().count(), std::memory_order_release); }

void Event::record(Position position, Stamp stamp) {
  const std::lock_guard lock(mutex_);
  position_ = std::move(position);
  stamp_ = std::move(stamp);
}

Position Event::position() const {
  const std::lock_guard lock(mutex_);
  return position_;
}

CUresult Event::elapsed_ms(const Event& start, const Event& end, float* milliseconds) {
  if (!start.has_timing() || !end.has_timing()) return CUDA_ERROR_INVALID_HANDLE;
  if (!start.was_recorded() || !end.was_recorded()) return CUDA_ERROR_INVALID_HANDLE;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // sic
  Scheduler& scheduler = Scheduler::get();
  if (!scheduler.reached(start.position()) || !scheduler.reached(end.position())) return CUDA_ERROR_NOT_READY;
  const auto time_of = [](const Event& event) {
    const std::lock_guard lock(event.mutex_);
    return Clock::duration(event.stamp_->load(std::memory_order_acquire));
  };
  const std::chrono::duration<float, std::milli> elapsed = time_of(end) - time_of(start);
  *milliseconds = elapsed.count();
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::cpudriver
