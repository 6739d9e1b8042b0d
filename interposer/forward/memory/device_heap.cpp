// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/device_heap.hpp"

#include <iterator>

namespace mpsshim::interposer::forward {

void DeviceHeap::add_chunk(AddressRange chunk) {
  const auto block = blocks_.emplace(chunk.address, Block{chunk.size_bytes, 0, chunk.address, {}}).first;
  insert_free(block);
  chunks_.emplace(chunk.address, chunk.size_bytes);
  free_bytes_ += chunk.size_bytes;
  chunk_bytes_ += chunk.size_bytes;
}

DeviceHeap::Blocks::iterator DeviceHeap::insert_block(Blocks::iterator before, std::uint64_t address, const Block& block) {
  if (spare_block_.empty()) return blocks_.emplace_hint(before, address, block);
  spare_block_.key() = address;
  spare_block_.mapped() = block;
  return blocks_.insert(before, std::move(spare_block_));
}

void DeviceHeap::insert_free(Blocks::iterator block) {
  if (spare_free_.empty()) {
    free_.emplace(block->second.size_bytes, block->first);
    return;
  }
  spare_free_.value() = {block->second.size_bytes, block->first};
  free_.insert(std::move(spare_free_));
}

std::optional<std::uint64_t> DeviceHeap::allocate(std::uint64_t bytes, const AllocationOwner& owner) {
  if (bytes > UINT64_MAX - kAlignment) return std::nullopt;
  const std::uint64_t needed = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const auto fit = free_.lower_bound({needed, 0});
  if (fit == free_.end()) return std::nullopt;
  const auto block = blocks_.find(fit->second);
  erase_free(block);
  if (block->second.size_bytes > needed) {
    const Block rest{block->second.size_bytes - needed, 0, block->second.chunk, {}};
    insert_free(insert_block(std::next(block), block->first + needed, rest));
    block->second.size_bytes = needed;
  }
  block->second.requested_bytes = bytes;
  block->second.owner = owner;
  free_bytes_ -= needed;
  ++allocations_;
  return block->first;
}

std::optional<AddressRange> DeviceHeap::free(std::uint64_t address) {
  auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.requested_bytes == 0) return std::nullopt;
  block->second.requested_bytes = 0;
  free_bytes_ += block->second.size_bytes;
  --allocations_;
  const auto joins = [&](Blocks::iterator lower, Blocks::iterator upper) {
    return lower->second.requested_bytes == 0 && upper->second.requested_bytes == 0 && lower->second.chunk == upper->second.chunk;
  };
  if (const auto next = std::next(block); next != blocks_.end() && joins(block, next)) {
    erase_free(next);
    block->second.size_bytes += next->second.size_bytes;
    erase_block(next);
  }
  if (block != blocks_.begin()) {
    if (const auto previous = std::prev(block); joins(previous, block)) {
      erase_free(previous);
      previous->second.size_bytes += block->second.size_bytes;
      erase_block(block);
      block = previous;
    }
  }
  insert_free(block);
  if (block->first != block->second.chunk) return AddressRange{};
  const std::uint64_t chunk_size = chunks_.at(block->second.chunk);
  if (block->second.size_bytes != chunk_size) return AddressRange{};
  return AddressRange{block->first, chunk_size};
}

void DeviceHeap::remove_chunk(AddressRange chunk) {
  const auto block = blocks_.find(chunk.address);
  erase_free(block);
  erase_block(block);
  chunks_.erase(chunk.address);
  free_bytes_ -= chunk.size_bytes;
  chunk_bytes_ -= chunk.size_bytes;
}

std::optional<DeviceHeap::Allocation> DeviceHeap::find(std::uint64_t address) const {
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return std::nullopt;
  --after;
  const AddressRange range{after->first, after->second.requested_bytes};
  if (range.size_bytes == 0 || !range.holds(address, 1)) return std::nullopt;
  return Allocation{range, after->second.owner, after->second.chunk};
}

void DeviceHeap::append_allocations_of(CUcontext context, std::vector<std::uint64_t>& addresses) const {
  for (const auto& [address, block] : blocks_) {
    if (block.requested_bytes != 0 && block.owner.context == context) addresses.push_back(address);
  }
}

}  // namespace mpsshim::interposer::forward
