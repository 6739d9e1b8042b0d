// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/memory/session_arrays.hpp"

#include <utility>

namespace mpsshim::broker {

// What holds arrays goes while there is somewhere to note it.
SessionArrays::~SessionArrays() {
  leaving_arrays_.clear();
  leaving_samplers_.clear();
  textures_.clear();
  surfaces_.clear();
  while (!ended_.empty()) const std::vector<Object> ended = std::exchange(ended_, {});
}

bool SessionArrays::add(proto::ArrayId id, const SessionArray& array) {
  if (!table_.insert(id, std::make_unique<SessionArray>(array))) return false;
  ++arrays_;
  return true;
}

void SessionArrays::own(SessionArray& made, DeviceGrant grant) {
  auto counted = std::make_shared<const DeviceGrant>(std::move(grant));
  // By what is pointed to holds of different arrays are told apart.
  made.hold = std::shared_ptr<const Object>(new Object{made.array, made.mipmapped, made.external, 0, 0, nullptr, std::move(counted)},
                                            [this](const Object* object) {
                                              end(*object);
                                              delete object;
                                            });
}

void SessionArrays::end(const Object& object) {
  const std::lock_guard lock(mutex_);
  ended_.push_back(object);
  has_ended_.store(true, std::memory_order_relaxed);
}

SessionArrays::Ticket SessionArrays::retire(proto::ArrayId id) {
  const std::unique_ptr<SessionArray> found = table_.take(id);
  if (!found) return 0;
  --arrays_;
  std::vector<proto::ArrayId> parts = found->parts;
  while (!parts.empty()) {
    const std::unique_ptr<SessionArray> part = table_.take(parts.back());
    parts.pop_back();
    if (!part) continue;
    --arrays_;
    parts.insert(parts.end(), part->parts.begin(), part->parts.end());  // planes of a level
  }
  leaving_arrays_.emplace(++last_ticket_, found->hold);
  return last_ticket_;
}

SessionArrays::Ticket SessionArrays::retire_sampler(std::uint64_t handle, bool is_surface) {
  const auto node = samplers(is_surface).extract(handle);
  if (node.empty()) return 0;
  leaving_samplers_.emplace(++last_ticket_, Object{nullptr, nullptr, nullptr, is_surface ? 0 : handle, is_surface ? handle : 0, node.mapped()});
  return last_ticket_;
}

void SessionArrays::let_go(Ticket ticket) {
  leaving_arrays_.erase(ticket);
  if (const auto node = leaving_samplers_.extract(ticket); !node.empty()) end(node.mapped());
}

// A texture that goes may have been the last to hold its array.
void SessionArrays::destroy_ended() {
  for (;;) {
    std::vector<Object> ended;
    {
      const std::lock_guard lock(mutex_);
      ended.swap(ended_);
      has_ended_.store(false, std::memory_order_relaxed);
    }
    if (ended.empty()) return;
    for (const Object& object : ended) {
      if (object.texture != 0) driver_->cuTexObjectDestroy(object.texture);
      if (object.surface != 0) driver_->cuSurfObjectDestroy(object.surface);
      if (object.array != nullptr) driver_->cuArrayDestroy(object.array);
      if (object.mipmapped != nullptr) driver_->cuMipmappedArrayDestroy(object.mipmapped);
    }
  }
}

void SessionArrays::release_all() {
  std::vector<proto::ArrayId> ids;
  table_.for_each([&](proto::ArrayId id, SessionArray& array) {
    if (!array.is_part) ids.push_back(id);
  });
  for (const proto::ArrayId id : ids) (void)retire(id);
  for (const bool are_surfaces : {false, true}) {
    while (!samplers(are_surfaces).empty()) (void)retire_sampler(samplers(are_surfaces).begin()->first, are_surfaces);
  }
  leaving_arrays_.clear();
  for (const auto& [ticket, sampler] : std::exchange(leaving_samplers_, {})) end(sampler);
  destroy_ended();
}

}  // namespace mpsshim::broker
