// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/user_objects.hpp"

#include <utility>

#include "gen/api_declarations.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/graphs/graph.hpp"

namespace mpsshim::interposer::forward {

namespace {

std::uint64_t number_of(CUuserObject object) { return reinterpret_cast<std::uintptr_t>(object); }

}  // namespace

UserObjects& UserObjects::instance() {
  static auto* objects = new UserObjects();  // never destroyed
  return *objects;
}

CUuserObject UserObjects::create(void* pointer, CUhostFn destroy, unsigned count) {
  const std::lock_guard lock(mutex_);
  last_ += 16;  // as far apart as addresses
  objects_[last_] = {pointer, destroy, count};
  return reinterpret_cast<CUuserObject>(last_);  // NOLINT(performance-no-int-to-ptr)
}

CUresult UserObjects::retain(CUuserObject object, unsigned count) {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(number_of(object));
  if (found == objects_.end()) return CUDA_ERROR_INVALID_VALUE;
  found->second.count += count;
  return CUDA_SUCCESS;
}

CUresult UserObjects::release_locked(std::uint64_t object, unsigned count) {
  const auto found = objects_.find(object);
  if (found == objects_.end() || found->second.count < count) return CUDA_ERROR_INVALID_VALUE;
  found->second.count -= count;
  if (found->second.count != 0) return CUDA_SUCCESS;
  due_.emplace_back(found->second.destroy, found->second.pointer);
  objects_.erase(found);
  return CUDA_SUCCESS;
}

CUresult UserObjects::release(CUuserObject object, unsigned count) {
  const std::lock_guard lock(mutex_);
  return release_locked(number_of(object), count);
}

void UserObjects::retain_all(const References& references) {
  const std::lock_guard lock(mutex_);
  for (const auto& [object, count] : references) {
    if (const auto found = objects_.find(object); found != objects_.end()) found->second.count += count;
  }
}

void UserObjects::release_all(References references) {
  const std::lock_guard lock(mutex_);
  for (const auto& [object, count] : references) (void)release_locked(object, count);
}

void UserObjects::run_destructors() {
  std::vector<std::pair<CUhostFn, void*>> due;
  {
    const std::lock_guard lock(mutex_);
    due.swap(due_);
  }
  for (const auto& [destroy, pointer] : due) destroy(pointer);
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy, unsigned int initialRefcount, unsigned int flags) {
  // Nothing may wait for a destructor, and the flag says that the application knows.
  if (object_out == nullptr || destroy == nullptr || initialRefcount == 0 || initialRefcount > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  *object_out = UserObjects::instance().create(ptr, destroy, initialRefcount);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  return count != 0 ? UserObjects::instance().retain(object, count) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = UserObjects::instance().release(object, count);
  UserObjects::instance().run_destructors();
  return error;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
  if (count == 0 || (flags & ~static_cast<unsigned>(CU_GRAPH_USER_OBJECT_MOVE)) != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(Graphs::instance().mutex());
  Graph* found = Graphs::instance().resolve(graph);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Moved references are the caller's, which the graph keeps from now on.
  const bool is_move = (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0;
  if (const CUresult error = UserObjects::instance().retain(object, is_move ? 0 : count); error != CUDA_SUCCESS) return error;
  found->user_objects[number_of(object)] += count;
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard lock(Graphs::instance().mutex());
    Graph* found = Graphs::instance().resolve(graph);
    if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto held = found->user_objects.find(number_of(object));
    if (held == found->user_objects.end() || held->second < count) return CUDA_ERROR_INVALID_VALUE;
    held->second -= count;
    if (held->second == 0) found->user_objects.erase(held);
    if (const CUresult error = UserObjects::instance().release(object, count); error != CUDA_SUCCESS) return error;
  }
  UserObjects::instance().run_destructors();
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
