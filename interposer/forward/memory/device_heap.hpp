// SPDX-License-Identifier: Apache-2.0
// Carves allocations from chunks of device memory: bookkeeping of addresses alone, nothing here touches memory or the broker. Best fit with
// coalescing inside a chunk; every operation is O(log n). Not thread safe: DeviceMemory holds a lock.
// Addresses given to free() and find() come from the application and may be anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "interposer/forward/memory/address_range.hpp"

namespace mpsshim::interposer::forward {

class DeviceHeap {
 public:
  // What cuMemAlloc's addresses are aligned to on every device so far; sizes are rounded up to it.
  static constexpr std::uint64_t kAlignment = 512;

  // A new chunk; address and size are multiples of kAlignment and it overlaps no other.
  void add_chunk(AddressRange chunk);

  // The address, or nothing where no free block is large enough: add a chunk and ask again. `bytes` is not 0.
  [[nodiscard]] std::optional<std::uint64_t> allocate(std::uint64_t bytes);

  // Gives an allocation back. Nothing, if `address` is not the base of one. Else the chunk it lay in, if that is wholly free now (an empty
  // range if not).
  [[nodiscard]] std::optional<AddressRange> free(std::uint64_t address);

  // Takes a wholly free chunk out again.
  void remove_chunk(AddressRange chunk);

  // The allocation that holds `address`, with the size that was asked for.
  [[nodiscard]] std::optional<AddressRange> find(std::uint64_t address) const;

  // The address of the chunk in which it lies.
  [[nodiscard]] std::optional<std::uint64_t> chunk_of(std::uint64_t address) const;

  // By address: their sizes.
  [[nodiscard]] const std::map<std::uint64_t, std::uint64_t>& chunks() const { return chunks_; }

  [[nodiscard]] std::uint64_t free_bytes() const { return free_bytes_; }
  [[nodiscard]] std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] std::size_t allocation_count() const { return allocations_; }

 private:
  struct Block {
    std::uint64_t size_bytes = 0;       // up to the next block or the chunk's end
    std::uint64_t requested_bytes = 0;  // 0: free
    std::uint64_t chunk = 0;            // address of its chunk
  };
  using Blocks = std::map<std::uint64_t, Block>;

  void insert_free(Blocks::iterator block) { free_.emplace(block->second.size_bytes, block->first); }
  void erase_free(Blocks::iterator block) { free_.erase({block->second.size_bytes, block->first}); }

  Blocks blocks_;                                           // by address: allocated and free, no gaps within a chunk
  std::set<std::pair<std::uint64_t, std::uint64_t>> free_;  // (size, address)
  std::map<std::uint64_t, std::uint64_t> chunks_;           // address -> size
  std::uint64_t free_bytes_ = 0;
  std::uint64_t chunk_bytes_ = 0;
  std::size_t allocations_ = 0;
};

}  // namespace mpsshim::interposer::forward
