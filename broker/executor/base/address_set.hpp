// SPDX-License-Identifier: Apache-2.0
// A set of addresses: ranges that neither overlap nor touch (those that would are one), and which of them is large enough for something. Every
// question and every change takes time that grows with the logarithm of their number, whatever was added and removed in whatever order: clients
// decide that.
// Questions may come from clients: nothing overflows. Not thread safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace mpsshim::broker {

class AddressSet {
 public:
  // No part of it is in the set yet.
  void add(std::uint64_t address, std::uint64_t size_bytes);
  // All of it, or nothing where a part is not in the set (false).
  bool remove(std::uint64_t address, std::uint64_t size_bytes);
  // Whatever of it is in the set.
  void remove_within(std::uint64_t address, std::uint64_t size_bytes);
  void clear();

  [[nodiscard]] bool contains(std::uint64_t address, std::uint64_t size_bytes) const;
  [[nodiscard]] bool is_empty() const { return ranges_.empty(); }
  // A place for so many bytes in the smallest range that has one, the lowest of several of that size; 0: there is none. Where the alignment is
  // coarser than what the ranges begin at, some that would just do may not be found: only kMostTried are tried before one is taken that has room
  // wherever it begins. `alignment` is a power of two.
  [[nodiscard]] std::uint64_t find(std::uint64_t size_bytes, std::uint64_t alignment) const;

 private:
  static constexpr unsigned kMostTried = 16;
  using Ranges = std::map<std::uint64_t, std::uint64_t>;  // address -> size

  void insert(std::uint64_t address, std::uint64_t size_bytes);
  void erase(Ranges::iterator range);
  // The one that holds the address; end(): none does.
  [[nodiscard]] Ranges::const_iterator holding(std::uint64_t address) const;

  Ranges ranges_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // (size, address)
};

}  // namespace mpsshim::broker
