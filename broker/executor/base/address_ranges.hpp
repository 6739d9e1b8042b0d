// SPDX-License-Identifier: Apache-2.0
// Ranges of addresses that do not overlap, by where they begin. Questions may come from clients: nothing overflows.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace mpsshim::broker {

using AddressRanges = std::map<std::uint64_t, std::uint64_t>;  // address -> size

// The last entry of a map by address that begins at or before `address`; end(): none does.
template <typename Map>
[[nodiscard]] auto entry_before(Map& map, std::uint64_t address) {
  const auto after = map.upper_bound(address);
  return after == map.begin() ? map.end() : std::prev(after);
}

// All of [address, address + size_bytes) lies in the range that begins at `begin`.
[[nodiscard]] constexpr bool lies_in(std::uint64_t begin, std::uint64_t length, std::uint64_t address, std::uint64_t size_bytes) {
  const std::uint64_t offset = address - begin;
  return address >= begin && offset < length && size_bytes <= length - offset;
}

[[nodiscard]] inline bool contains(const AddressRanges& ranges, std::uint64_t address, std::uint64_t size_bytes) {
  const auto range = entry_before(ranges, address);
  return range != ranges.end() && lies_in(range->first, range->second, address, size_bytes);
}

}  // namespace mpsshim::broker
