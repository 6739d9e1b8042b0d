// SPDX-License-Identifier: Apache-2.0
// What this process holds of the device: chunks, what lies in them, and how many more or fewer there should be. Decides alone: whoever calls
// gets the chunks and gives back those named here (DeviceMemory). Not thread safe: DeviceMemory holds a lock.
//
// Small allocations have chunks of their own, so that one that lives long does not keep a large chunk. A chunk is as large as a part of what
// its kind holds already: few chunks, each a descriptor of the broker's, and little that is mapped for nothing. Empty chunks are kept up to
// kKeptBytes, and the one that has been empty for longest goes first; a program that allocates and frees in a loop meets no driver.
// Together this bounds what is mapped: 1.5 times the most that ever lived at once, plus kKeptBytes (tests/unit/forward/device_arena.cpp; 1.23
// times is what a million random operations come to).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/device_heap.hpp"

namespace mpsshim::interposer::forward {

class DeviceArena {
 public:
  static constexpr std::uint64_t kSmallBytes = 512ull << 10;        // up to here an allocation is small
  static constexpr std::uint64_t kGranularityBytes = 2ull << 20;    // of chunks: that of cuMemCreate
  static constexpr std::uint64_t kLargestChunkBytes = 64ull << 20;  // larger requests get a chunk of their own
  static constexpr std::uint64_t kKeptBytes = 128ull << 20;         // of empty chunks

  // The address, or nothing where a chunk is missing: add one of chunk_bytes_for(bytes), or at least of exact_chunk_bytes(bytes), and ask
  // again. `bytes` is not 0.
  [[nodiscard]] std::optional<std::uint64_t> allocate(std::uint64_t bytes, const AllocationOwner& owner = {});
  [[nodiscard]] std::uint64_t chunk_bytes_for(std::uint64_t bytes) const;
  [[nodiscard]] static std::uint64_t exact_chunk_bytes(std::uint64_t bytes);
  // A chunk that was made for an allocation of `bytes`.
  void add_chunk(AddressRange chunk, std::uint64_t bytes);

  // Gives an allocation back; false if `address` is not the base of one. Chunks that nobody needs now have left the arena and are in `leaving`.
  [[nodiscard]] bool free(std::uint64_t address, std::vector<AddressRange>& leaving);
  // Memory is short: every empty chunk leaves.
  [[nodiscard]] std::vector<AddressRange> take_empty();

  using Allocation = DeviceHeap::Allocation;
  // The allocation that holds `address`.
  [[nodiscard]] std::optional<Allocation> find(std::uint64_t address) const;
  [[nodiscard]] std::vector<std::uint64_t> allocations_of(CUcontext context) const;

  [[nodiscard]] std::vector<AddressRange> chunks() const;

  [[nodiscard]] std::uint64_t mapped_bytes() const;
  [[nodiscard]] std::uint64_t empty_bytes() const { return empty_bytes_; }

 private:
  struct Empty {
    AddressRange chunk;
    DeviceHeap* heap = nullptr;
  };

  [[nodiscard]] DeviceHeap& heap_for(std::uint64_t bytes) { return bytes <= kSmallBytes ? small_ : large_; }
  [[nodiscard]] bool adopt_empty(DeviceHeap& heap, std::uint64_t bytes);
  void keep(Empty empty, std::vector<AddressRange>& leaving);
  void leave(const Empty& empty, std::vector<AddressRange>& leaving);

  DeviceHeap small_;
  DeviceHeap large_;
  std::vector<Empty> empty_;  // in the order in which they became so; a handful
  std::uint64_t empty_bytes_ = 0;
};

}  // namespace mpsshim::interposer::forward
