// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/memory/device_heap.hpp"

#include "broker/cpudriver/memory/allocations.hpp"

namespace mpsshim::cpudriver {

DeviceHeap& DeviceHeap::get() {
  static DeviceHeap& heap = *new DeviceHeap;
  return heap;
}

bool DeviceHeap::set_size(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (base_ != 0) return bytes == size_;
  size_ = bytes;
  return true;
}

std::size_t DeviceHeap::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

bool DeviceHeap::is_ready() {
  if (base_ != 0) return true;
  if (allocate_device(size_, MemoryKind::device, base_) != CUDA_SUCCESS) return false;
  free_[base_] = size_;
  return true;
}

std::uint64_t DeviceHeap::allocate(std::uint64_t bytes) {
  constexpr std::uint64_t kAlignment = 16;
  const std::lock_guard lock(mutex_);
  if (bytes == 0 || bytes > size_ || !is_ready()) return 0;
  const std::uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const auto [begin, size] = *hole;
    if (size < rounded) continue;
    free_.erase(hole);
    if (size > rounded) free_[begin + rounded] = size - rounded;
    used_[begin] = rounded;
    return begin;
  }
  return 0;
}

void DeviceHeap::release(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(address);
  if (found == used_.end()) return;
  std::uint64_t begin = found->first;
  std::uint64_t size = found->second;
  used_.erase(found);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      size += previous->second;
    }
  }
  free_[begin] = size;
}

}  // namespace mpsshim::cpudriver
