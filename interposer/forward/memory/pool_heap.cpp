// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/pool_heap.hpp"

#include <algorithm>
#include <iterator>

namespace mpsshim::interposer::forward {

namespace {

// 0 where the sum does not fit: nothing is that large.
std::uint64_t rounded(std::uint64_t bytes) { return (bytes + PoolHeap::kAlignment - 1) / PoolHeap::kAlignment * PoolHeap::kAlignment; }

// Of two values of one fence word, the one that is written later.
std::uint32_t later(std::uint32_t first, std::uint32_t second) { return proto::fence_reached(first, second) ? first : second; }

}  // namespace

void PoolHeap::add_segment(AddressRange segment) {
  Block block;
  block.size_bytes = segment.size_bytes;
  block.segment = segment.address;
  list(blocks_.emplace(segment.address, block).first);
  segments_.emplace(segment.address, segment.size_bytes);
  usage_.reserved_bytes += segment.size_bytes;
  usage_.reserved_high_bytes = std::max(usage_.reserved_high_bytes, usage_.reserved_bytes);
}

std::uint64_t PoolHeap::take(Blocks::iterator block, std::uint64_t needed, std::uint64_t bytes, const AllocationOwner& owner) {
  unlist(block);
  if (block->second.size_bytes > needed) {
    Block rest = block->second;
    rest.size_bytes -= needed;
    list(blocks_.emplace_hint(std::next(block), block->first + needed, rest));
    block->second.size_bytes = needed;
  }
  block->second.state = State::used;
  block->second.requested_bytes = bytes;
  block->second.owner = owner;
  usage_.used_bytes += needed;
  usage_.used_high_bytes = std::max(usage_.used_high_bytes, usage_.used_bytes);
  return block->first;
}

std::optional<std::uint64_t> PoolHeap::allocate(std::uint64_t bytes, std::uint32_t word, const AllocationOwner& owner) {
  const std::uint64_t needed = rounded(bytes);
  if (needed == 0) return std::nullopt;
  if (const auto own = pending_.find(word); own != pending_.end()) {
    const auto fit = own->second.lower_bound({needed, 0});
    if (fit != own->second.end()) return take(blocks_.find(fit->second), needed, bytes, owner);
  }
  const auto fit = idle_.lower_bound({needed, 0});
  if (fit == idle_.end()) return std::nullopt;
  return take(blocks_.find(fit->second), needed, bytes, owner);
}

std::optional<PoolHeap::Taken> PoolHeap::allocate_behind_another(std::uint64_t bytes, const AllocationOwner& owner) {
  const std::uint64_t needed = rounded(bytes);
  if (needed == 0) return std::nullopt;
  for (auto& [word, sizes] : pending_) {
    const auto fit = sizes.lower_bound({needed, 0});
    if (fit != sizes.end()) return Taken{take(blocks_.find(fit->second), needed, bytes, owner), word};
  }
  return std::nullopt;
}

bool PoolHeap::free(std::uint64_t address, std::optional<Mark> mark) {
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.state != State::used) return false;
  usage_.used_bytes -= block->second.size_bytes;
  block->second.requested_bytes = 0;
  block->second.owner = {};
  block->second.state = mark ? State::pending : State::idle;
  if (mark) {
    block->second.mark_word = mark->word;
    block->second.mark_value = mark->value;
  }
  join_and_list(block);
  return true;
}

// The block is in no list, its neighbours are.
void PoolHeap::join_and_list(Blocks::iterator block) {
  const auto joins = [&](Blocks::iterator other) {
    const Block& mine = block->second;
    const Block& its = other->second;
    return its.segment == mine.segment && its.state == mine.state && (mine.state == State::idle || its.mark_word == mine.mark_word);
  };
  const auto absorb = [&](Blocks::iterator lower, Blocks::iterator upper) {
    if (lower->second.state == State::pending) lower->second.mark_value = later(lower->second.mark_value, upper->second.mark_value);
    lower->second.size_bytes += upper->second.size_bytes;
    blocks_.erase(upper);
  };
  if (const auto above = std::next(block); above != blocks_.end() && joins(above)) {
    unlist(above);
    absorb(block, above);
  }
  if (block != blocks_.begin()) {
    if (const auto below = std::prev(block); joins(below)) {
      unlist(below);
      absorb(below, block);
      block = below;
    }
  }
  list(block);
}

void PoolHeap::settle(std::uint64_t address) {
  const auto block = blocks_.find(address);
  unlist(block);
  block->second.state = State::idle;
  join_and_list(block);
}

std::vector<std::uint32_t> PoolHeap::pending_words() const {
  std::vector<std::uint32_t> words;
  for (const auto& [word, sizes] : pending_) {
    if (!sizes.empty()) words.push_back(word);
  }
  return words;
}

std::vector<AddressRange> PoolHeap::release(std::uint64_t keep_bytes) {
  std::vector<AddressRange> leaving;
  for (auto segment = segments_.begin(); segment != segments_.end() && usage_.reserved_bytes > keep_bytes;) {
    const auto block = blocks_.find(segment->first);
    if (block->second.state != State::idle || block->second.size_bytes != segment->second) {
      ++segment;
      continue;
    }
    leaving.push_back({segment->first, segment->second});
    usage_.reserved_bytes -= segment->second;
    unlist(block);
    blocks_.erase(block);
    segment = segments_.erase(segment);
  }
  return leaving;
}

std::optional<PoolHeap::Found> PoolHeap::find(std::uint64_t address) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return std::nullopt;
  --block;
  const AddressRange range{block->first, block->second.requested_bytes};
  return block->second.state == State::used && range.holds(address, 1) ? std::optional(Found{range, block->second.owner}) : std::nullopt;
}

std::vector<std::uint64_t> PoolHeap::allocations_of(CUcontext context) const {
  std::vector<std::uint64_t> found;
  for (const auto& [address, block] : blocks_) {
    if (block.state == State::used && block.owner.context == context) found.push_back(address);
  }
  return found;
}

}  // namespace mpsshim::interposer::forward
