// SPDX-License-Identifier: Apache-2.0
// What a memory pool can be asked, and told to do (cuMemPoolGetAttribute, cuMemPoolSetAttribute).
#include <cstring>

#include "interposer/forward/memory/memory_pools.hpp"

namespace mpsshim::interposer::forward {

CUresult MemoryPools::get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Pool* pool = pool_of(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  const PoolHeap::Usage& usage = pool->heap.usage();
  const auto store = [&](auto number) {
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return store(pool->reuse_follow_event_dependencies);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return store(pool->reuse_allow_opportunistic);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return store(pool->reuse_allow_internal_dependencies);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return store(pool->release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return store(usage.reserved_bytes);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return store(usage.reserved_high_bytes);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return store(usage.used_bytes);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return store(usage.used_high_bytes);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult MemoryPools::set_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, const void* value) {
  Pool* pool = pool_of(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto load = [&]<typename T>(T& number) {
    std::memcpy(&number, value, sizeof number);
    return CUDA_SUCCESS;
  };
  std::uint64_t level = 0;
  const std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return load(pool->reuse_follow_event_dependencies);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return load(pool->reuse_allow_opportunistic);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return load(pool->reuse_allow_internal_dependencies);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: may_have_excess_.store(true, std::memory_order_relaxed); return load(pool->release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      (void)load(level);
      if (level != 0) return CUDA_ERROR_INVALID_VALUE;  // a high-water mark can only be begun anew
      attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH ? pool->heap.reset_reserved_high() : pool->heap.reset_used_high();
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace mpsshim::interposer::forward
