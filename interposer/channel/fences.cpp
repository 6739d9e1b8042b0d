// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/fences.hpp"

#include <sys/mman.h>

namespace mpsshim::interposer {

// In one order for all: the executor stores `owed` and then looks at `wanted` (StreamQueue::owe).
bool FenceMemory::want(std::uint32_t index, std::uint32_t target) {
  std::atomic<std::uint32_t>& wanted = words_[index].wanted;
  std::uint32_t seen = wanted.load(std::memory_order_relaxed);
  while ((seen == 0 || !proto::fence_reached(seen, target)) && !wanted.compare_exchange_weak(seen, target, std::memory_order_relaxed)) {
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t owed = words_[index].owed.load(std::memory_order_relaxed);
  return owed != 0 && proto::fence_reached(owed, target);
}

bool FenceMemory::map(const proto::FileDescriptor& file) {
  constexpr std::size_t kBytes = proto::kFenceSegmentBytes;
  void* fresh = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (fresh == MAP_FAILED) return false;
  if (words_ == nullptr) {
    madvise(fresh, kBytes, MADV_DONTFORK);
    words_ = static_cast<proto::FenceWord*>(fresh);
    return true;
  }
  auto* words = static_cast<proto::FenceWord*>(fresh);
  for (std::uint32_t index = 0; index < proto::kFenceWords; ++index) {
    words[index].value.store(words_[index].value.load(std::memory_order_acquire), std::memory_order_relaxed);
    words[index].host_value.store(words_[index].host_value.load(std::memory_order_acquire), std::memory_order_relaxed);
  }
  words[proto::kKernelErrorWord].kernel_error.store(words_[proto::kKernelErrorWord].kernel_error.load(std::memory_order_acquire));
  // One step for readers: they see the old words or the new ones, which are equal.
  if (mremap(fresh, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, words_) == MAP_FAILED) {
    munmap(fresh, kBytes);
    return false;
  }
  madvise(words_, kBytes, MADV_DONTFORK);
  return true;
}

void FenceMemory::unmap() {
  if (words_ != nullptr) munmap(words_, proto::kFenceSegmentBytes);
  words_ = nullptr;
}

}  // namespace mpsshim::interposer
