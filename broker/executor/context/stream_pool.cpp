// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/context/stream_pool.hpp"

#include <algorithm>
#include <utility>

#include "broker/executor/base/progress.hpp"
#include "broker/log.hpp"
#include "broker/seen_end.hpp"
#include "proto/mutex.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

CUresult StreamPool::take(std::uint64_t session, int priority, std::unique_ptr<PooledStream>& stream) {
  {
    std::lock_guard lock(mutex_);
    if (!may_take(session)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  stream = take_free(priority);
  if (!stream) {
    const auto in_order = before_make_ ? before_make_(priority) : std::unique_lock<std::mutex>();
    return make_for(session, priority, stream, nullptr);
  }
  progress_[stream->progress_index].session.store(session, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult StreamPool::take_green(std::uint64_t session, const GreenContextRef& green, int priority, std::unique_ptr<PooledStream>& stream) {
  {
    std::lock_guard lock(mutex_);
    if (!may_take(session)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return make_for(session, priority, stream, green);
}

// Outside the lock: the driver may take its time.
CUresult StreamPool::make_for(std::uint64_t session, int priority, std::unique_ptr<PooledStream>& stream, const GreenContextRef& green) {
  const CUresult result = make(priority, stream, green);
  if (result == CUDA_SUCCESS) {
    progress_[stream->progress_index].session.store(session, std::memory_order_release);
  } else {
    std::lock_guard lock(mutex_);
    note_end(session);
  }
  return result;
}

bool StreamPool::may_take(std::uint64_t session) {
  std::uint32_t& taken = taken_[session];
  if (taken >= kFewStreams && all_taken_ >= kProgressStreams - kReserved) {
    if (std::exchange(warned_, session) != session) {
      log_warning("Session {}: has {} streams, all sessions {} of {}; the rest is for those with fewer than {}", session, taken, all_taken_,
                  kProgressStreams, kFewStreams);
    }
    return false;
  }
  ++taken;
  ++all_taken_;
  return true;
}

void StreamPool::note_end(std::uint64_t session) {
  const auto found = taken_.find(session);
  if (found == taken_.end()) return;
  --all_taken_;
  if (--found->second == 0) taken_.erase(found);
}

// A stream that lies in the pool, idle, goes for its word.
bool StreamPool::give_one_up() {
  std::unique_ptr<PooledStream> stream;
  {
    std::lock_guard lock(mutex_);
    const auto filled = std::ranges::find_if(free_, [](const auto& entry) { return !entry.second.empty(); });
    if (filled == free_.end()) return false;
    stream = std::move(filled->second.back());
    filled->second.pop_back();
  }
  destroy(std::move(stream));
  return true;
}

// It is idle. The last stream of a green context may let go of that.
void StreamPool::destroy(std::unique_ptr<PooledStream> stream) {
  end_handle(*stream);
  progress_.give_back(stream->progress_index);
}

void StreamPool::end_handle(const PooledStream& stream) {
  std::unique_lock<IssueLock> lock;
  if (stream.green != nullptr) lock = std::unique_lock(stream.green->issue_lock());
  driver_->cuStreamDestroy_v2(stream.handle);
}

CUresult StreamPool::make_handle(int priority, const GreenContextRef& green, CUstream& handle) {
  if (green == nullptr) return driver_->cuStreamCreateWithPriority(&handle, CU_STREAM_NON_BLOCKING, priority);
  const std::lock_guard lock(green->issue_lock());
  return driver_->cuGreenCtxStreamCreate(&handle, green->handle(), CU_STREAM_NON_BLOCKING, priority);
}

std::unique_ptr<PooledStream> StreamPool::take_free(int priority) {
  std::lock_guard lock(mutex_);
  auto& free = free_[priority];
  if (free.empty()) return nullptr;
  std::unique_ptr<PooledStream> stream = std::move(free.back());
  free.pop_back();
  return stream;
}

// One of the pool's changes places with it; else the driver makes one. What it leaves lies in the pool for others, if it can be anybody's.
CUresult StreamPool::change(PooledStream& stream, const GreenContextRef& green, int priority) {
  std::unique_ptr<PooledStream> other = green == nullptr ? take_free(priority) : nullptr;
  std::optional<std::uint32_t> word;
  if (other != nullptr) {
    word = other->progress_index;
  } else {
    const bool is_logged = green == nullptr && before_make_ != nullptr;
    const auto in_order = is_logged ? before_make_(priority) : std::unique_lock<std::mutex>();
    CUstream handle = nullptr;
    if (const CUresult error = make_handle(priority, green, handle); error != CUDA_SUCCESS) return error;
    other = std::make_unique<PooledStream>(PooledStream{handle, 0, priority, green});
    if (stream.green == nullptr) word = progress_.take();
  }
  std::swap(stream.handle, other->handle);
  std::swap(stream.priority, other->priority);
  std::swap(stream.green, other->green);
  if (other->green != nullptr || !word) {
    end_handle(*other);
    if (word) progress_.give_back(*word);
    return CUDA_SUCCESS;
  }
  other->progress_index = *word;
  std::lock_guard lock(mutex_);
  free_[other->priority].push_back(std::move(other));
  return CUDA_SUCCESS;
}

CUresult StreamPool::make(int priority, std::unique_ptr<PooledStream>& stream, const GreenContextRef& green) {
  std::optional<std::uint32_t> index = progress_.take();
  if (!index && give_one_up()) index = progress_.take();
  if (!index) return CUDA_ERROR_OUT_OF_MEMORY;
  CUstream handle = nullptr;
  const proto::trace::Span span("driver", "cuStreamCreate", {"green", green != nullptr ? 1U : 0U});
  const CUresult result = make_handle(priority, green, handle);
  if (result != CUDA_SUCCESS) {
    progress_.give_back(*index);
    return result;
  }
  stream = std::make_unique<PooledStream>(PooledStream{handle, *index, priority, green});
  return CUDA_SUCCESS;
}

CUresult StreamPool::add(int priority) {
  std::unique_ptr<PooledStream> stream;
  const CUresult result = make(priority, stream);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(mutex_);
  free_[priority].push_back(std::move(stream));
  return CUDA_SUCCESS;
}

void StreamPool::give_back(std::unique_ptr<PooledStream> stream) {
  StreamProgress& row = progress_[stream->progress_index];
  note_former(row, progress_tick());
  const std::uint64_t session = row.session.exchange(0, std::memory_order_acq_rel);
  const bool is_green = stream->green != nullptr;
  if (is_green) destroy(std::move(stream));
  std::lock_guard lock(mutex_);
  note_end(session);
  if (!is_green) free_[stream->priority].push_back(std::move(stream));
}

}  // namespace mpsshim::broker
