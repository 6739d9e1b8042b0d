// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/memory/memory_map.hpp"

#include <mutex>

namespace mpsshim::cpudriver {

MemoryMap& MemoryMap::get() {
  static MemoryMap& map = *new MemoryMap;  // leaked: workers may ask while static destructors run
  return map;
}

bool MemoryMap::insert(MemoryRange range) {
  if (range.size == 0 || range.end() < range.begin) return false;
  const std::unique_lock lock(mutex_);
  const auto next = ranges_.lower_bound(range.begin);
  if (next != ranges_.end() && next->first < range.end()) return false;
  if (next != ranges_.begin() && std::prev(next)->second.end() > range.begin) return false;
  range.id = next_id_++;
  ranges_.emplace_hint(next, range.begin, range);
  generation_.fetch_add(1, std::memory_order_release);
  return true;
}

std::optional<MemoryRange> MemoryMap::remove(std::uint64_t begin, MemoryKind kind) {
  const std::unique_lock lock(mutex_);
  const auto found = ranges_.find(begin);
  if (found == ranges_.end() || found->second.kind != kind) return std::nullopt;
  const MemoryRange range = found->second;
  ranges_.erase(found);
  generation_.fetch_add(1, std::memory_order_release);
  return range;
}

const MemoryRange* MemoryMap::lookup(std::uint64_t address) const {
  auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  const MemoryRange& range = std::prev(next)->second;
  return address < range.end() ? &range : nullptr;
}

std::optional<MemoryRange> MemoryMap::containing(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  const MemoryRange* range = lookup(address);
  return range == nullptr ? std::nullopt : std::optional(*range);
}

bool MemoryMap::is_accessible(std::uint64_t address, std::uint64_t size, bool for_writing) const {
  if (address + size < address) return false;
  const std::shared_lock lock(mutex_);
  const std::uint64_t end = address + size;
  while (address < end) {
    const MemoryRange* range = lookup(address);
    if (range == nullptr || (for_writing && !range->is_writable)) return false;
    address = range->end();
  }
  return true;
}

bool MemoryMap::overlaps_any(std::uint64_t begin, std::uint64_t size) const {
  const std::shared_lock lock(mutex_);
  if (lookup(begin) != nullptr) return true;
  const auto next = ranges_.lower_bound(begin);
  return next != ranges_.end() && next->first - begin < size;
}

ptx::AddressRange MemoryMap::find(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  const MemoryRange* range = lookup(address);
  if (range == nullptr) return {};
  return {.begin = range->begin, .end = range->end(), .is_writable = range->is_writable};
}

}  // namespace mpsshim::cpudriver
