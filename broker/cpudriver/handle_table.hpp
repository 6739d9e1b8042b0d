// SPDX-License-Identifier: Apache-2.0
//
// The live objects of one kind, found by the address that the API hands out as their handle. A handle that is not here
// (destroyed, made up) is answered with an error, where the real driver may crash. Any thread may call.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

template <class T>
class HandleTable {
 public:
  static HandleTable& get() {
    static HandleTable& table = *new HandleTable;
    return table;
  }

  // Returns the handle.
  void* add(std::shared_ptr<T> object) {
    void* const handle = object.get();
    const std::lock_guard lock(mutex_);
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  // Null if there is none.
  std::shared_ptr<T> find(const void* handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  // The object, which is no longer in the table, or null.
  std::shared_ptr<T> remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::cpudriver
