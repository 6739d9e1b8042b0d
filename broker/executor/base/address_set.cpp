// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/address_set.hpp"

#include <algorithm>
#include <iterator>

#include "broker/executor/base/address_ranges.hpp"

namespace mpsshim::broker {

namespace {

// Where in a range of such addresses something of that size may begin; 0: nowhere.
std::uint64_t place_in(std::uint64_t begin, std::uint64_t length, std::uint64_t size_bytes, std::uint64_t alignment) {
  const std::uint64_t skipped = (alignment - (begin & (alignment - 1))) & (alignment - 1);
  return skipped <= length && size_bytes <= length - skipped ? begin + skipped : 0;
}

}  // namespace

void AddressSet::insert(std::uint64_t address, std::uint64_t size_bytes) {
  ranges_.emplace(address, size_bytes);
  by_size_.emplace(size_bytes, address);
}

void AddressSet::erase(Ranges::iterator range) {
  by_size_.erase({range->second, range->first});
  ranges_.erase(range);
}

AddressSet::Ranges::const_iterator AddressSet::holding(std::uint64_t address) const {
  const auto range = entry_before(ranges_, address);
  return range != ranges_.end() && address - range->first < range->second ? range : ranges_.end();
}

void AddressSet::add(std::uint64_t address, std::uint64_t size_bytes) {
  if (size_bytes == 0) return;
  if (const auto behind = ranges_.find(address + size_bytes); behind != ranges_.end()) {
    size_bytes += behind->second;
    erase(behind);
  }
  const auto before = entry_before(ranges_, address);
  if (before != ranges_.end() && before->first + before->second == address) {
    address = before->first;
    size_bytes += before->second;
    erase(before);
  }
  insert(address, size_bytes);
}

bool AddressSet::remove(std::uint64_t address, std::uint64_t size_bytes) {
  if (!contains(address, size_bytes)) return false;
  const auto range = entry_before(ranges_, address);
  const auto [begin, length] = *range;
  erase(range);
  if (address > begin) insert(begin, address - begin);
  const std::uint64_t left = begin + length - (address + size_bytes);
  if (left > 0) insert(address + size_bytes, left);
  return true;
}

void AddressSet::remove_within(std::uint64_t address, std::uint64_t size_bytes) {
  for (auto range = holding(address);; range = ranges_.lower_bound(address)) {
    if (range == ranges_.end()) range = ranges_.lower_bound(address);
    if (range == ranges_.end() || (range->first > address && range->first - address >= size_bytes)) return;
    const std::uint64_t first = std::max(range->first, address);
    const std::uint64_t left_in_range = range->second - (first - range->first);
    remove(first, std::min(left_in_range, size_bytes - (first - address)));
  }
}

void AddressSet::clear() {
  ranges_.clear();
  by_size_.clear();
}

bool AddressSet::contains(std::uint64_t address, std::uint64_t size_bytes) const {
  const auto range = holding(address);
  return range != ranges_.end() && lies_in(range->first, range->second, address, size_bytes);
}

std::uint64_t AddressSet::find(std::uint64_t size_bytes, std::uint64_t alignment) const {
  unsigned tried = 0;
  for (auto range = by_size_.lower_bound({size_bytes, 0}); range != by_size_.end() && tried < kMostTried; ++range, ++tried) {
    if (const std::uint64_t found = place_in(range->second, range->first, size_bytes, alignment); found != 0) return found;
  }
  if (alignment - 1 > UINT64_MAX - size_bytes) return 0;
  const auto range = by_size_.lower_bound({size_bytes + alignment - 1, 0});
  return range != by_size_.end() ? place_in(range->second, range->first, size_bytes, alignment) : 0;
}

}  // namespace mpsshim::broker
