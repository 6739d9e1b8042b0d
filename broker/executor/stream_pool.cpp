// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/stream_pool.hpp"

#include <utility>

#include "broker/executor/progress.hpp"

namespace mpsshim::broker {

CUresult StreamPool::take(std::uint64_t session, int priority, std::unique_ptr<PooledStream>& stream) {
  {
    std::lock_guard lock(mutex_);
    if (auto& free = free_[priority]; !free.empty()) {
      stream = std::move(free.back());
      free.pop_back();
    }
  }
  if (!stream) {
    const CUresult result = make(priority, stream);  // outside the lock: the driver may take its time
    if (result != CUDA_SUCCESS) return result;
  }
  progress_[stream->progress_index].session.store(session, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult StreamPool::make(int priority, std::unique_ptr<PooledStream>& stream) {
  const std::optional<std::uint32_t> index = progress_.take();
  if (!index) return CUDA_ERROR_OUT_OF_MEMORY;
  CUstream handle = nullptr;
  const CUresult result = driver_->cuStreamCreateWithPriority(&handle, CU_STREAM_NON_BLOCKING, priority);
  if (result != CUDA_SUCCESS) {
    progress_.give_back(*index);
    return result;
  }
  stream = std::make_unique<PooledStream>(PooledStream{handle, *index, priority});
  return CUDA_SUCCESS;
}

void StreamPool::give_back(std::unique_ptr<PooledStream> stream) {
  progress_[stream->progress_index].session.store(0, std::memory_order_release);
  std::lock_guard lock(mutex_);
  free_[stream->priority].push_back(std::move(stream));
}

}  // namespace mpsshim::broker
