// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/persisting_cache.hpp"

#include <algorithm>
#include <cstddef>

namespace mpsshim::broker {

void PersistingCache::wish(std::uint64_t session, std::uint64_t bytes) {
  int most = 0;
  const bool is_known = driver_->cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, device_) == CUDA_SUCCESS;
  const std::uint64_t bound = is_known && most > 0 ? static_cast<std::uint64_t>(most) : 0;
  const std::uint64_t wanted = std::min(bytes, bound);
  const std::lock_guard lock(mutex_);
  if (wanted != 0)
    wishes_[session] = wanted;
  else
    wishes_.erase(session);
}

void PersistingCache::forget(std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  wishes_.erase(session);
}

CUresult PersistingCache::apply() {
  const std::lock_guard lock(mutex_);
  if (!first_) {
    if (wishes_.empty()) return CUDA_SUCCESS;
    std::size_t bytes = 0;
    if (const CUresult result = driver_->cuCtxGetLimit(&bytes, CU_LIMIT_PERSISTING_L2_CACHE_SIZE); result != CUDA_SUCCESS) return result;
    applied_ = bytes;
    first_ = bytes;
  }
  std::uint64_t largest = *first_;
  for (const auto& [session, bytes] : wishes_) largest = std::max(largest, bytes);
  if (largest == applied_) return CUDA_SUCCESS;
  const CUresult result = driver_->cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, largest);
  if (result == CUDA_SUCCESS) applied_ = largest;
  return result;
}

}  // namespace mpsshim::broker
