// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/device_arena.hpp"

#include <algorithm>
#include <bit>
#include <iterator>

namespace mpsshim::interposer::forward {

std::optional<std::uint64_t> DeviceArena::allocate(std::uint64_t bytes, const AllocationOwner& owner) {
  DeviceHeap& heap = heap_for(bytes);
  std::optional<std::uint64_t> address = heap.allocate(bytes, owner);
  if (!address && adopt_empty(heap, bytes)) address = heap.allocate(bytes, owner);
  if (!address || empty_.empty()) return address;
  // The chunk it lies in is no longer an empty one.
  const auto used = std::ranges::find_if(empty_, [&](const Empty& empty) { return empty.chunk.holds(*address, 1); });
  if (used != empty_.end()) {
    empty_bytes_ -= used->chunk.size_bytes;
    empty_.erase(used);
  }
  return address;
}

// An empty chunk of the other kind serves as well, unless it is larger than one that would be asked for.
bool DeviceArena::adopt_empty(DeviceHeap& heap, std::uint64_t bytes) {
  const std::uint64_t least = exact_chunk_bytes(bytes);
  const std::uint64_t most = chunk_bytes_for(bytes);
  const auto found = std::ranges::find_if(
      empty_, [&](const Empty& empty) { return empty.heap != &heap && empty.chunk.size_bytes >= least && empty.chunk.size_bytes <= most; });
  if (found == empty_.end()) return false;
  heap.add_chunk(found->chunk);
  found->heap->remove_chunk(found->chunk);
  found->heap = &heap;
  return true;
}

std::uint64_t DeviceArena::exact_chunk_bytes(std::uint64_t bytes) {
  if (bytes > UINT64_MAX - kGranularityBytes) return bytes;  // refused by the executor, as any size that no device has
  return (bytes + kGranularityBytes - 1) / kGranularityBytes * kGranularityBytes;
}

std::uint64_t DeviceArena::chunk_bytes_for(std::uint64_t bytes) const {
  constexpr std::uint64_t kShare = 4;  // of what is mapped already
  const std::uint64_t exact = exact_chunk_bytes(bytes);
  if (exact > kLargestChunkBytes / 2) return exact;
  const std::uint64_t mapped = (bytes <= kSmallBytes ? small_ : large_).chunk_bytes();
  return std::max(exact, std::clamp(std::bit_floor(mapped / kShare), kGranularityBytes, kLargestChunkBytes));
}

void DeviceArena::add_chunk(AddressRange chunk, std::uint64_t bytes) { heap_for(bytes).add_chunk(chunk); }

bool DeviceArena::free(std::uint64_t address, std::vector<AddressRange>& leaving) {
  for (DeviceHeap* heap : {&small_, &large_}) {
    const std::optional<AddressRange> chunk = heap->free(address);
    if (!chunk) continue;
    if (chunk->size_bytes != 0) keep({*chunk, heap}, leaving);
    return true;
  }
  return false;
}

void DeviceArena::keep(Empty empty, std::vector<AddressRange>& leaving) {
  if (empty.chunk.size_bytes > kLargestChunkBytes) return leave(empty, leaving);
  empty_.push_back(empty);
  empty_bytes_ += empty.chunk.size_bytes;
  std::size_t gone = 0;
  for (; empty_bytes_ > kKeptBytes; ++gone) {
    leave(empty_[gone], leaving);
    empty_bytes_ -= empty_[gone].chunk.size_bytes;
  }
  empty_.erase(empty_.begin(), empty_.begin() + static_cast<std::ptrdiff_t>(gone));
}

void DeviceArena::leave(const Empty& empty, std::vector<AddressRange>& leaving) {
  leaving.push_back(empty.chunk);  // first: it may throw, and a chunk that has left must be known to somebody
  empty.heap->remove_chunk(empty.chunk);
}

std::vector<AddressRange> DeviceArena::take_empty() {
  std::vector<AddressRange> leaving;
  leaving.reserve(empty_.size());
  for (const Empty& empty : empty_) leave(empty, leaving);
  empty_.clear();
  empty_bytes_ = 0;
  return leaving;
}

std::optional<DeviceArena::Allocation> DeviceArena::find(std::uint64_t address) const {
  if (const auto found = small_.find(address)) return found;
  return large_.find(address);
}

std::vector<std::uint64_t> DeviceArena::allocations_of(CUcontext context) const {
  std::vector<std::uint64_t> addresses;
  for (const DeviceHeap* heap : {&small_, &large_}) heap->append_allocations_of(context, addresses);
  return addresses;
}

std::vector<AddressRange> DeviceArena::chunks() const {
  std::vector<AddressRange> all;
  for (const DeviceHeap* heap : {&small_, &large_}) {
    for (const auto& [address, size_bytes] : heap->chunks()) all.push_back({address, size_bytes});
  }
  return all;
}

std::uint64_t DeviceArena::mapped_bytes() const { return small_.chunk_bytes() + large_.chunk_bytes(); }

}  // namespace mpsshim::interposer::forward
