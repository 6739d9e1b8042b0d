// SPDX-License-Identifier: Apache-2.0
// An allocation of managed memory that migrates, and what is known of its blocks. ManagedMemory has them, under its order_.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/channel/recipe_book.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/coherence.hpp"
#include "interposer/forward/stream.hpp"
#include "proto/ids.hpp"

namespace mpsshim::interposer::forward {

struct ManagedAllocation {
  static constexpr std::size_t kMostBlocks = 64;  // opened at once

  enum class Attached : std::uint8_t { everybody, host, stream };
  // On its way to the host since its stream's fence was posted; void once more work is.
  struct Prefetch {
    BlockRun blocks;
    std::uint64_t posted = 0;
  };
  // A block that the program has while kernels may use it.
  struct Beside {
    std::size_t block = 0;
    std::vector<std::byte> before;  // its contents when it was opened for writing; empty: for reading
    std::chrono::steady_clock::time_point until;
  };

  explicit ManagedAllocation(std::size_t blocks) : coherence(blocks, kMostBlocks) {}
  AddressRange pages;
  std::uint64_t size_bytes = 0;  // as asked for
  std::uint64_t block_bytes = 0;
  std::uint64_t device = 0;  // the allocation of DeviceMemory that it lies in
  bool is_alone = false;     // in a chunk of its own: it can live on the host
  std::uint64_t shadow = 0;
  std::uint64_t second_copy = 0;  // pinned, as large as a block: what is looked at beside kernels is copied twice; 0: not yet
  CUcontext context = nullptr;
  std::uint64_t buffer_id = 0;
  std::vector<AddressRange> variables;  // relative to its start; empty: not of modules
  Coherence coherence;
  // As advised: the shadow is what kernels find at its address, all of it is open for good, and nothing moves.
  bool lives_on_host = false;
  RecipeBook::Key residence = 0;
  Attached attached = Attached::everybody;
  proto::StreamId stream;            // Attached::stream
  std::vector<FenceTarget> earlier;  // work that was posted when that was said
  std::vector<Prefetch> prefetches;
  std::vector<Beside> beside;
  bool is_long_to_read = false;   // the work that is under way, as touches have found
  bool is_long_to_write = false;  // the same
  bool is_served = false;         // by a touch
  [[nodiscard]] AddressRange range_of(BlockRun blocks) const;
  [[nodiscard]] BlockRun blocks_of(AddressRange range) const;
  [[nodiscard]] std::span<const std::byte> contents(BlockRun blocks) const;  // on the host
};

}  // namespace mpsshim::interposer::forward
