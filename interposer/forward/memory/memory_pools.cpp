// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/memory_pools.hpp"

#include <algorithm>
#include <utility>

#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint64_t kLeastSegmentBytes = 32ull << 20;  // what a pool of NVIDIA's driver reserves first

proto::Id<proto::HandleKind::memory_pool> pool_id(CUmemoryPool handle) { return id_of<proto::HandleKind::memory_pool>(handle); }

}  // namespace

MemoryPools& MemoryPools::instance() {
  return PerSession<MemoryPools>::get([] { return new MemoryPools(); });
}

CUmemoryPool MemoryPools::default_pool() {
  const std::lock_guard lock(mutex_);
  if (default_ == nullptr) {
    auto pool = std::make_unique<Pool>();
    Pool* made = pool.get();
    made->handle = default_ = to_handle<CUmemoryPool>(table_.add(std::move(pool)));
  }
  return default_;
}

CUmemoryPool MemoryPools::current() {
  const CUmemoryPool first = default_pool();
  const std::lock_guard lock(mutex_);
  return current_ != nullptr ? current_ : first;
}

CUresult MemoryPools::set_current(CUmemoryPool handle) {
  if (pool_of(handle) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  current_ = handle;
  return CUDA_SUCCESS;
}

MemoryPools::Pool* MemoryPools::pool_of(CUmemoryPool handle) { return table_.find(pool_id(handle)).get(); }

CUresult MemoryPools::create(std::uint64_t max_bytes, CUmemoryPool& handle) {
  auto pool = std::make_unique<Pool>();
  Pool* made = pool.get();
  made->max_bytes = max_bytes;
  const auto id = table_.add(std::move(pool));
  if (!id.has_kind()) return CUDA_ERROR_OUT_OF_MEMORY;
  handle = made->handle = to_handle<CUmemoryPool>(id);
  return CUDA_SUCCESS;
}

CUresult MemoryPools::destroy(CUmemoryPool handle) {
  Pool* pool = pool_of(handle);
  if (pool == nullptr || handle == default_pool()) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard growing(growth_mutex_);  // until it has been looked at, no other thread ends it for good
  {
    const std::lock_guard lock(mutex_);
    if (current_ == handle) current_ = default_;
    pool->is_destroyed = true;
    ending_.push_back(table_.take(pool_id(handle)));
  }
  may_have_excess_.store(true, std::memory_order_relaxed);
  fence_pending(*pool);
  release_excess_locked();
  return CUDA_SUCCESS;
}

void MemoryPools::reclaim(Pool& pool) {
  pool.heap.reclaim([](std::uint32_t word, std::uint32_t value) { return session().fences().reached(word, value); });
}

std::optional<std::uint64_t> MemoryPools::try_allocate(Pool& pool, std::uint64_t bytes, std::uint32_t word, const AllocationOwner& owner) {
  const std::lock_guard lock(mutex_);
  std::optional<std::uint64_t> address = pool.heap.allocate(bytes, word, owner);
  if (!address && pool.reuse_allow_opportunistic != 0) {
    reclaim(pool);
    address = pool.heap.allocate(bytes, word, owner);
  }
  return address;
}

CUresult MemoryPools::allocate(CUmemoryPool handle, std::uint64_t bytes, Stream& stream, CUcontext context, std::uint64_t& address) {
  Pool* pool = pool_of(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const AllocationOwner owner{context, next_buffer_id()};
  std::optional<std::uint64_t> found = try_allocate(*pool, bytes, stream.word, owner);
  if (!found) {
    const std::lock_guard growing(growth_mutex_);
    fence_pending(*pool);
    // Another thread may take what is added before this one does.
    while (!(found = try_allocate(*pool, bytes, stream.word, owner))) {
      const CUresult error = grow(*pool, bytes);
      if (error == CUDA_ERROR_OUT_OF_MEMORY) return allocate_behind_another(*pool, bytes, stream, owner, address);
      if (error != CUDA_SUCCESS) return error;
    }
  }
  address = *found;
  return CUDA_SUCCESS;
}

CUresult MemoryPools::grow(Pool& pool, std::uint64_t bytes) {
  const std::uint64_t exact = DeviceArena::exact_chunk_bytes(bytes);
  std::uint64_t wanted = std::max(exact, kLeastSegmentBytes);
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t reserved = pool.heap.usage().reserved_bytes;
    if (pool.max_bytes != 0 && (exact > pool.max_bytes || reserved > pool.max_bytes - exact)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (pool.max_bytes != 0) wanted = std::min(wanted, pool.max_bytes - reserved) / DeviceArena::kGranularityBytes * DeviceArena::kGranularityBytes;
  }
  wanted = std::max(wanted, exact);
  std::uint64_t address = 0;
  CUresult error = DeviceMemory::instance().allocate(wanted, nullptr, address);
  if (error == CUDA_ERROR_OUT_OF_MEMORY && exact < wanted) error = DeviceMemory::instance().allocate(wanted = exact, nullptr, address);
  if (error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(mutex_);
  segments_.emplace(address, Segment{wanted, &pool});
  pool.heap.add_segment({address, wanted});
  has_been_used_.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

void MemoryPools::fence_pending(Pool& pool) {
  std::vector<proto::StreamId> streams;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t word : pool.heap.pending_words()) streams.push_back(last_freed_in_[word]);
  }
  for (const proto::StreamId id : streams) {
    std::uint32_t covered = 0;
    (void)Streams::instance().fence_of(id, covered);  // an error is the session's: the next call meets it
  }
}

// The device is full: what another stream has freed serves as well, once this one waits for it (CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES).
CUresult MemoryPools::allocate_behind_another(Pool& pool, std::uint64_t bytes, Stream& stream, const AllocationOwner& owner, std::uint64_t& address) {
  if (pool.reuse_allow_internal_dependencies == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard ordering(order_mutex_);
  Event* event = nullptr;
  if (const CUresult error = internal_event(event); error != CUDA_SUCCESS) return error;
  std::optional<PoolHeap::Taken> taken;
  proto::StreamId other;
  {
    const std::lock_guard lock(mutex_);
    reclaim(pool);
    if (const auto idle = pool.heap.allocate(bytes, stream.word, owner)) {
      address = *idle;
      return CUDA_SUCCESS;
    }
    taken = pool.heap.allocate_behind_another(bytes, owner);
    if (!taken) return CUDA_ERROR_OUT_OF_MEMORY;
    other = last_freed_in_[taken->word];
  }
  address = taken->address;
  bool has_ended = false;
  const CUresult error = Streams::instance().with(other, [&](Stream* freed_in) {
    has_ended = freed_in == nullptr;
    return has_ended ? CUDA_SUCCESS : Events::instance().record(*event, *freed_in, CU_EVENT_RECORD_DEFAULT);
  });
  if (error != CUDA_SUCCESS) return error;
  // A stream that has ended was reclaimed just now, or ends at any moment: its last fence is on its way.
  if (has_ended) return session().wait_fence(taken->word, session().fences().posted(taken->word).load(), "memory freed in a destroyed stream");
  return Events::instance().wait_on_stream(*event, stream, CU_EVENT_WAIT_DEFAULT);
}

CUresult MemoryPools::internal_event(Event*& event) {
  if (event_ == nullptr) {
    if (const CUresult error = Events::instance().create(CU_EVENT_DISABLE_TIMING, nullptr, event_); error != CUDA_SUCCESS) return error;
  }
  event = event_;
  return CUDA_SUCCESS;
}

// Legacy order: the NULL stream comes behind the blocking streams, and each of those behind the NULL stream.
bool MemoryPools::stands_behind_others(const Stream& stream) {
  if (stream.is_behind_blocking() || !stream.is_blocking) return stream.is_behind_blocking();
  if (GreenContexts::any()) return true;  // of some context there may be another NULL stream
  const Stream* null = Streams::instance().legacy_default();
  if (null == nullptr) return true;
  const std::uint32_t last = session().fences().posted(null->word).load(std::memory_order_acquire);
  return null->has_work.load(std::memory_order_relaxed) || !session().fences().reached(null->word, last);
}

CUresult MemoryPools::mark(Stream& stream, PoolHeap::Mark& mark) {
  mark.word = stream.word;
  if (!stands_behind_others(stream)) {
    mark.value = session().channel().locked([&](Link&) {
      const std::uint32_t last = session().fences().posted(stream.word).load(std::memory_order_relaxed);
      if (!stream.has_work.load(std::memory_order_relaxed)) return last;
      return last + 1 != 0 ? last + 1 : 1;  // as next_fence()
    });
    return CUDA_SUCCESS;
  }
  // Behind the other streams' work, and in front of what they do later: only a record there has that place.
  const std::lock_guard ordering(order_mutex_);
  Event* event = nullptr;
  if (const CUresult error = internal_event(event); error != CUDA_SUCCESS) return error;
  if (const CUresult error = Events::instance().record(*event, stream, CU_EVENT_RECORD_DEFAULT); error != CUDA_SUCCESS) return error;
  mark.value = static_cast<std::uint32_t>(event->position.load(std::memory_order_relaxed));
  return CUDA_SUCCESS;
}

CUresult MemoryPools::free(std::uint64_t address, Stream& stream) {
  std::optional<Found> found;
  if (!look(address, found) || !found || found->range.address != address) return CUDA_ERROR_INVALID_VALUE;
  PoolHeap::Mark behind;
  if (const CUresult error = mark(stream, behind); error != CUDA_SUCCESS) return error;
  return free_marked(address, behind, &stream);
}

CUresult MemoryPools::give_back(std::uint64_t address) { return free_marked(address, std::nullopt, nullptr); }

CUresult MemoryPools::free_marked(std::uint64_t address, std::optional<PoolHeap::Mark> mark, const Stream* stream) {
  const std::lock_guard lock(mutex_);
  Pool* pool = pool_at(address);
  if (pool == nullptr || !pool->heap.free(address, mark)) return CUDA_ERROR_INVALID_VALUE;
  if (stream != nullptr) last_freed_in_[stream->word] = stream->id;
  const bool has_excess = pool->is_destroyed || pool->heap.usage().reserved_bytes > pool->release_threshold;
  if (has_excess) may_have_excess_.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

void MemoryPools::free_all_of(CUcontext context) {
  std::vector<std::uint64_t> ended;
  {
    const std::lock_guard lock(mutex_);
    std::vector<Pool*> pools;
    for (const auto& [address, segment] : segments_) {
      if (std::ranges::find(pools, segment.pool) == pools.end()) pools.push_back(segment.pool);
    }
    for (const Pool* pool : pools) {
      for (const std::uint64_t address : pool->heap.allocations_of(context)) ended.push_back(address);
    }
  }
  for (const std::uint64_t address : ended) (void)give_back(address);
  release_excess();
}

MemoryPools::Pool* MemoryPools::pool_at(std::uint64_t address) const {
  auto segment = segments_.upper_bound(address);
  if (segment == segments_.begin()) return nullptr;
  --segment;
  return address - segment->first < segment->second.size_bytes ? segment->second.pool : nullptr;
}

bool MemoryPools::look(std::uint64_t address, std::optional<Found>& found) const {
  if (!has_been_used_.load(std::memory_order_relaxed)) return false;  // who asks for an address has it from a thread that has set this
  const std::lock_guard lock(mutex_);
  const Pool* pool = pool_at(address);
  if (pool == nullptr) return false;
  if (const auto allocation = pool->heap.find(address)) found = Found{allocation->range, allocation->owner, pool->handle};
  return true;
}

CUresult MemoryPools::give_back_segments(Pool& pool, std::uint64_t keep_bytes) {
  std::vector<AddressRange> leaving;
  {
    const std::lock_guard lock(mutex_);
    reclaim(pool);
    leaving = pool.heap.release(keep_bytes);
    for (const AddressRange& segment : leaving) segments_.erase(segment.address);
  }
  CUresult first = CUDA_SUCCESS;
  for (const AddressRange& segment : leaving) {
    const CUresult error = DeviceMemory::instance().give_back(segment.address);
    if (first == CUDA_SUCCESS) first = error;
  }
  return first;
}

CUresult MemoryPools::trim(CUmemoryPool handle, std::uint64_t keep_bytes) {
  Pool* pool = pool_of(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard growing(growth_mutex_);
  return give_back_segments(*pool, keep_bytes);
}

namespace {

struct HeldBack {
  bool is_on = false;
  bool has_been_due = false;
};
thread_local HeldBack held_back;

}  // namespace

bool MemoryPools::hold_back(bool is_held_back) { return std::exchange(held_back, {is_held_back, false}).has_been_due; }

// Looked at again after the next wait, as long as something pending holds memory that is to go.
void MemoryPools::release_excess() {
  if (held_back.is_on) {
    held_back.has_been_due = true;
    return;
  }
  const std::lock_guard growing(growth_mutex_);
  release_excess_locked();
}

void MemoryPools::release_excess_locked() {
  std::vector<Pool*> pools;
  {
    const std::lock_guard lock(mutex_);
    may_have_excess_.store(false, std::memory_order_relaxed);
    for (const auto& [address, segment] : segments_) {
      if (std::ranges::find(pools, segment.pool) == pools.end()) pools.push_back(segment.pool);
    }
  }
  for (Pool* pool : pools) (void)give_back_segments(*pool, pool->is_destroyed ? 0 : pool->release_threshold);
  const std::lock_guard lock(mutex_);
  for (Pool* pool : pools) {
    const std::uint64_t keep = pool->is_destroyed ? 0 : pool->release_threshold;
    if (pool->heap.usage().reserved_bytes > keep && !pool->heap.pending_words().empty()) may_have_excess_.store(true, std::memory_order_relaxed);
  }
  std::erase_if(ending_, [](const std::unique_ptr<Pool>& pool) { return pool->heap.usage().reserved_bytes == 0; });
}

}  // namespace mpsshim::interposer::forward
