// SPDX-License-Identifier: Apache-2.0
// User objects (CUDA Driver API manual, "Graph Management"): memory of the application that lives as long as graphs refer to it. References are
// counted; with the last one the application's destructor is called, on the thread that gave it up and outside all locks of this library.
// Any thread. An executable graph gives its references up when its last launch has ended.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gen/cuda_api.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class UserObjects {
 public:
  using References = std::map<std::uint64_t, unsigned>;  // by object

  [[nodiscard]] static UserObjects& instance();

  [[nodiscard]] CUuserObject create(void* pointer, CUhostFn destroy, unsigned count);
  // CUDA_ERROR_INVALID_VALUE: no such object, or not so many references.
  [[nodiscard]] CUresult retain(CUuserObject object, unsigned count);
  [[nodiscard]] CUresult release(CUuserObject object, unsigned count);

  void retain_all(const References& references);
  // May be called with the graphs' mutex held: destructors run at the next run_destructors().
  void release_all(References references);
  // Calls the destructors that have become due. Without any lock held.
  void run_destructors();

 private:
  struct Object {
    void* pointer = nullptr;
    CUhostFn destroy = nullptr;
    unsigned count = 0;
  };

  [[nodiscard]] CUresult release_locked(std::uint64_t object, unsigned count) REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::uint64_t, Object> objects_ GUARDED_BY(mutex_);
  std::vector<std::pair<CUhostFn, void*>> due_ GUARDED_BY(mutex_);
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
};

}  // namespace mpsshim::interposer::forward
