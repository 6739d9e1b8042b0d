// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/streams/owed_fences.hpp"

#include <algorithm>
#include <utility>

namespace mpsshim::broker {

void raise_fence(proto::FenceWord& word, std::uint32_t value) {
  std::uint32_t seen = word.value.load(std::memory_order_relaxed);
  while (!proto::fence_reached(seen, value) && !word.value.compare_exchange_weak(seen, value, std::memory_order_release)) {
  }
}

OwedFences::OwedFences(proto::FenceWord& word)
    : word_(word), last_asks_(word.asks.load(std::memory_order_relaxed)), answered_(word.answers.load(std::memory_order_relaxed)) {}

void OwedFences::note_record() {
  const std::uint32_t asks = word_.asks.load(std::memory_order_relaxed);
  if (std::exchange(last_asks_, asks) != asks)
    eager_ = kEagerRecords;
  else if (eager_ > 0)
    --eager_;
}

bool OwedFences::is_wanted(std::uint32_t value) const {
  const std::uint32_t wanted = word_.wanted.load(std::memory_order_relaxed);
  return wanted != 0 && proto::fence_reached(wanted, value);
}

// In one order for all: the client stores `wanted` and then looks at `owed` (FenceMemory::want).
bool OwedFences::add(std::uint32_t position, std::uint32_t value, PointRef point) {
  owed_.push_back({position, value, std::move(point)});
  ++untold_;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return !is_wanted(value);
}

bool OwedFences::is_any_wanted() const {
  return !owed_.empty() && (is_wanted(owed_.front().value) || word_.asks.load(std::memory_order_relaxed) != answered_);
}

CUresult OwedFences::look(const Driver& driver) {
  const std::uint32_t asks = word_.asks.load(std::memory_order_acquire);
  for (unsigned looks = 0; !owed_.empty(); ++looks) {
    if (looks == kMostLooks) return CUDA_SUCCESS;  // the rest, and the answer, the next time
    const CUresult result = driver->cuEventQuery(owed_.front().point->awaited());
    if (result == CUDA_ERROR_NOT_READY) break;
    if (result != CUDA_SUCCESS) return result;
    raise_fence(word_, owed_.front().value);
    pop();
  }
  answered_ = asks;
  word_.answers.store(asks, std::memory_order_release);
  return CUDA_SUCCESS;
}

void OwedFences::pop() {
  owed_.pop_front();
  untold_ = std::min(untold_, owed_.size());
}

}  // namespace mpsshim::broker
