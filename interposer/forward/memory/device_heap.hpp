// SPDX-License-Identifier: Apache-2.0
// Carves allocations from chunks of device memory: bookkeeping of addresses alone, nothing here touches memory or the broker. Best fit with
// coalescing inside a chunk; every operation is O(log n). Not thread safe: DeviceMemory holds a lock.
// Addresses given to free() and find() come from the application and may be anything. A program may allocate and free all the time: entries of what
// comes and goes are kept for the next rather than allocated anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"

namespace mpsshim::interposer::forward {

class DeviceHeap {
 public:
  // What cuMemAlloc's addresses are aligned to on every device so far; sizes are rounded up to it.
  static constexpr std::uint64_t kAlignment = 512;

  // A new chunk; address and size are multiples of kAlignment and it overlaps no other.
  void add_chunk(AddressRange chunk);

  // The address, or nothing where no free block is large enough: add a chunk and ask again. `bytes` is not 0.
  [[nodiscard]] std::optional<std::uint64_t> allocate(std::uint64_t bytes, const AllocationOwner& owner = {});

  // Gives an allocation back. Nothing, if `address` is not the base of one. Else the chunk it lay in, if that is wholly free now (an empty
  // range if not).
  [[nodiscard]] std::optional<AddressRange> free(std::uint64_t address);

  // Takes a wholly free chunk out again.
  void remove_chunk(AddressRange chunk);

  struct Allocation {
    AddressRange range;  // with the size that was asked for
    AllocationOwner owner;
    std::uint64_t chunk = 0;  // address of the chunk in which it lies
  };
  // The allocation that holds `address`.
  [[nodiscard]] std::optional<Allocation> find(std::uint64_t address) const;
  // Puts the addresses of the allocations of this context behind `addresses`.
  void append_allocations_of(CUcontext context, std::vector<std::uint64_t>& addresses) const;

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
    AllocationOwner owner;              // where it is allocated
  };
  using Blocks = std::map<std::uint64_t, Block>;
  using FreeBlocks = std::set<std::pair<std::uint64_t, std::uint64_t>>;

  Blocks::iterator insert_block(Blocks::iterator before, std::uint64_t address, const Block& block);
  void erase_block(Blocks::iterator block) { spare_block_ = blocks_.extract(block); }
  void insert_free(Blocks::iterator block);
  void erase_free(Blocks::iterator block) { spare_free_ = free_.extract({block->second.size_bytes, block->first}); }

  Blocks blocks_;                                           // by address: allocated and free, no gaps within a chunk
  FreeBlocks free_;                                         // (size, address)
  Blocks::node_type spare_block_;                           // of the last that went, for the next that comes
  FreeBlocks::node_type spare_free_;
  std::map<std::uint64_t, std::uint64_t> chunks_;           // address -> size
  std::uint64_t free_bytes_ = 0;
  std::uint64_t chunk_bytes_ = 0;
  std::size_t allocations_ = 0;
};

}  // namespace mpsshim::interposer::forward
