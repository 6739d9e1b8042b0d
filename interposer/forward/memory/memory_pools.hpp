// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation (CUDA Driver API manual, "Stream Ordered Memory Allocator"): the pools of this process. A pool carves from
// segments of DeviceMemory; an allocation or a free is bookkeeping alone, no record and no driver call, unless the pool has to grow. The one
// exception is a free that legacy order puts behind other streams' work (in the NULL stream; in a blocking one while the NULL stream is at work):
// an event is recorded there.
//
// Any thread. Pools belong to the device of the session, not to a context; their handles are ids. A destroyed pool with allocations goes on
// until the last of them is freed. What a pool holds outlives an executor as all device memory does, and so does this bookkeeping.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/channel/lock.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/memory/pool_heap.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/handle_table.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class MemoryPools {
 public:
  [[nodiscard]] static MemoryPools& instance();

  [[nodiscard]] CUmemoryPool default_pool();
  [[nodiscard]] CUmemoryPool current();
  // CUDA_ERROR_INVALID_VALUE for what is no pool, here and below.
  [[nodiscard]] CUresult set_current(CUmemoryPool handle);
  [[nodiscard]] CUresult create(std::uint64_t max_bytes, CUmemoryPool& handle);
  [[nodiscard]] CUresult destroy(CUmemoryPool handle);
  [[nodiscard]] bool is_pool(CUmemoryPool handle) { return pool_of(handle) != nullptr; }

  [[nodiscard]] CUresult allocate(CUmemoryPool handle, std::uint64_t bytes, Stream& stream, CUcontext context, std::uint64_t& address);
  [[nodiscard]] CUresult free(std::uint64_t address, Stream& stream);
  // Memory whose work has ended: what cuMemFree does after it has waited.
  [[nodiscard]] CUresult give_back(std::uint64_t address);
  void free_all_of(CUcontext context);

  struct Found {
    AddressRange range;
    AllocationOwner owner;
    CUmemoryPool pool = nullptr;
  };
  // True if `address` lies in memory of a pool; `found` is then the allocation that holds it, if one does.
  [[nodiscard]] bool look(std::uint64_t address, std::optional<Found>& found) const;

  [[nodiscard]] CUresult get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value);
  [[nodiscard]] CUresult set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, const void* value);
  [[nodiscard]] CUresult trim(CUmemoryPool handle, std::uint64_t keep_bytes);
  // What a pool holds beyond its release threshold goes back: at the end of every wait for a stream, an event or the context.
  void after_synchronize() {
    if (may_have_excess_.load(std::memory_order_relaxed)) [[unlikely]]
      release_excess();
  }
  // Whether that is left for later in the calling thread (Reaching). True: it was, since this was last set.
  static bool hold_back(bool is_held_back);

 private:
  struct Pool {
    CUmemoryPool handle = nullptr;
    PoolHeap heap;
    std::uint64_t max_bytes = 0;  // 0: no limit
    std::uint64_t release_threshold = 0;
    int reuse_follow_event_dependencies = 1;
    int reuse_allow_opportunistic = 1;
    int reuse_allow_internal_dependencies = 1;
    bool is_destroyed = false;
  };
  struct Segment {
    std::uint64_t size_bytes = 0;
    Pool* pool = nullptr;
  };

  [[nodiscard]] Pool* pool_of(CUmemoryPool handle);
  [[nodiscard]] Pool* pool_at(std::uint64_t address) const REQUIRES(mutex_);  // under mutex_
  [[nodiscard]] std::optional<std::uint64_t> try_allocate(Pool& pool, std::uint64_t bytes, std::uint32_t word, const AllocationOwner& owner);
  [[nodiscard]] CUresult grow(Pool& pool, std::uint64_t bytes);
  [[nodiscard]] CUresult allocate_behind_another(Pool& pool, std::uint64_t bytes, Stream& stream, const AllocationOwner& owner,
                                                 std::uint64_t& address);
  // Has all streams with pending blocks write fences that cover them, so that the blocks become idle some time.
  void fence_pending(Pool& pool);
  [[nodiscard]] static bool stands_behind_others(const Stream& stream);
  [[nodiscard]] CUresult mark(Stream& stream, PoolHeap::Mark& mark);
  [[nodiscard]] CUresult free_marked(std::uint64_t address, std::optional<PoolHeap::Mark> mark, const Stream* stream);
  [[nodiscard]] CUresult give_back_segments(Pool& pool, std::uint64_t keep_bytes);
  [[nodiscard]] CUresult internal_event(Event*& event) REQUIRES(order_mutex_);
  void release_excess();
  void release_excess_locked() REQUIRES(growth_mutex_);
  static void reclaim(Pool& pool);

  Mutex growth_mutex_;         // one thread grows a pool or shrinks one; never taken under mutex_
  Mutex order_mutex_;          // the internal event: recorded and awaited, or recorded and read, by one thread
  mutable ChannelLock mutex_;  // everything below; held for a few map operations
  proto::HandleTable<proto::HandleKind::memory_pool, Pool> table_{ActingSession::index()};
  std::vector<std::unique_ptr<Pool>> ending_ GUARDED_BY(mutex_);               // destroyed, with allocations
  std::map<std::uint64_t, Segment> segments_ GUARDED_BY(mutex_);               // by address
  std::map<std::uint32_t, proto::StreamId> last_freed_in_ GUARDED_BY(mutex_);  // by fence word
  CUmemoryPool default_ GUARDED_BY(mutex_) = nullptr;
  CUmemoryPool current_ GUARDED_BY(mutex_) = nullptr;
  Event* event_ GUARDED_BY(order_mutex_) = nullptr;
  std::atomic<bool> may_have_excess_{false};
  std::atomic<bool> has_been_used_{false};  // programs without pools pay one load for each pointer
};

}  // namespace mpsshim::interposer::forward
