// SPDX-License-Identifier: Apache-2.0
// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: synchronous copies and fills of an allocation are done when they return, also where CUDA leaves them to the
// stream. Kept by allocation; as soon as one has it, all synchronous calls of the process wait, which is more than is asked for. The same goes for
// managed memory that lives on the host, where the program looks without waiting. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>

#include "interposer/forward/memory/copy.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class SyncMemops {
 public:
  [[nodiscard]] static SyncMemops& instance() {
    return PerSession<SyncMemops>::get([] { return new SyncMemops(); });
  }
  // Allocations go by their buffer ids, which are not used twice.
  void set(std::uint64_t buffer_id, bool synchronous) {
    const std::lock_guard lock(mutex_);
    if (synchronous) {
      allocations_.insert(buffer_id);
    } else {
      allocations_.erase(buffer_id);
    }
    note_use();
  }
  // Managed memory that the program sees at once has come, or gone.
  void count_on_host(int change) {
    const std::lock_guard lock(mutex_);
    on_host_ += change;
    note_use();
  }
  [[nodiscard]] bool holds(std::uint64_t buffer_id) const {
    const std::lock_guard lock(mutex_);
    return allocations_.contains(buffer_id);
  }
  // Behind a synchronous call.
  [[nodiscard]] CUresult finish(CUresult result, Stream& stream) const {
    if (!is_in_use_.load(std::memory_order_relaxed) || result != CUDA_SUCCESS) [[likely]]
      return result;
    return Streams::instance().wait_for_own_work(stream);
  }

 private:
  void note_use() REQUIRES(mutex_) { is_in_use_.store(!allocations_.empty() || on_host_ != 0, std::memory_order_relaxed); }

  mutable Mutex mutex_;
  std::set<std::uint64_t> allocations_ GUARDED_BY(mutex_);
  int on_host_ GUARDED_BY(mutex_) = 0;
  std::atomic<bool> is_in_use_{false};
};

}  // namespace mpsshim::interposer::forward
