// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/session_arrays.hpp"

#include <memory>
#include <utility>

namespace mpsshim::broker {

bool SessionArrays::add(proto::ArrayId id, const SessionArray& array) {
  if (!table_.insert(id, std::make_unique<SessionArray>(array))) return false;
  ++arrays_;
  return true;
}

SessionArrays::Ticket SessionArrays::leave(const Leaving& leaving) {
  const std::lock_guard lock(mutex_);
  leaving_.emplace(++last_ticket_, leaving);
  return last_ticket_;
}

SessionArrays::Ticket SessionArrays::retire(proto::ArrayId id) {
  const std::unique_ptr<SessionArray> found = table_.take(id);
  if (!found) return 0;
  --arrays_;
  for (const proto::ArrayId part : found->parts) {
    if (table_.take(part)) --arrays_;
  }
  return retire(*found);
}

SessionArrays::Ticket SessionArrays::retire(const SessionArray& array) { return leave({array, 0, 0}); }

SessionArrays::Ticket SessionArrays::retire_sampler(std::uint64_t handle, bool is_surface) {
  return leave(is_surface ? Leaving{{}, 0, handle} : Leaving{{}, handle, 0});
}

void SessionArrays::destroy(Ticket ticket) {
  Leaving leaving;
  {
    const std::lock_guard lock(mutex_);
    const auto found = leaving_.find(ticket);
    if (found == leaving_.end()) return;
    leaving = found->second;
    leaving_.erase(found);
  }
  destroy(leaving);
}

void SessionArrays::destroy(const Leaving& leaving) const {
  if (leaving.texture != 0) driver_->cuTexObjectDestroy(leaving.texture);
  if (leaving.surface != 0) driver_->cuSurfObjectDestroy(leaving.surface);
  if (leaving.array.is_part) return;
  if (leaving.array.array != nullptr) driver_->cuArrayDestroy(leaving.array.array);
  if (leaving.array.mipmapped != nullptr) driver_->cuMipmappedArrayDestroy(leaving.array.mipmapped);
}

// Textures first: they name arrays.
void SessionArrays::release_all() {
  for (const std::uint64_t handle : textures_) destroy({{}, handle, 0});
  for (const std::uint64_t handle : surfaces_) destroy({{}, 0, handle});
  textures_.clear();
  surfaces_.clear();
  std::vector<proto::ArrayId> ids;
  table_.for_each([&](proto::ArrayId id, SessionArray& array) {
    if (!array.is_part) ids.push_back(id);
  });
  for (const proto::ArrayId id : ids) (void)retire(id);
  for (const auto& [ticket, leaving] : std::exchange(leaving_, {})) destroy(leaving);
}

}  // namespace mpsshim::broker
