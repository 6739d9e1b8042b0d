// SPDX-License-Identifier: Apache-2.0
// One memory pool's bookkeeping (CUDA Driver API manual, "Stream Ordered Memory Allocator"): carves allocations from segments of device
// memory, and knows of every freed block who may have it when. Bookkeeping of addresses alone; nothing here touches memory, streams or the
// broker. Not thread safe: MemoryPools holds a lock. Addresses come from the application and may be anything.
//
// A freed block is *pending* with a mark: the fence word of the stream it was freed in, and the value that word reaches once everything is
// done that was in the stream then. Until then it belongs to that stream: whatever comes later there is behind the old use. Afterwards it is
// *idle* and anybody's. Neighbours are joined where they are both idle, or both pending in one stream (the later mark counts).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"
#include "proto/channel.hpp"

namespace mpsshim::interposer::forward {

class PoolHeap {
 public:
  static constexpr std::uint64_t kAlignment = 512;

  struct Mark {
    std::uint32_t word = 0;
    std::uint32_t value = 0;
  };
  struct Taken {
    std::uint64_t address = 0;
    std::uint32_t word = 0;  // of the stream whose work so far comes before any use of it
  };
  struct Usage {
    std::uint64_t reserved_bytes = 0;
    std::uint64_t reserved_high_bytes = 0;
    std::uint64_t used_bytes = 0;
    std::uint64_t used_high_bytes = 0;
  };

  // Overlaps no other; address and size are multiples of kAlignment.
  void add_segment(AddressRange segment);

  // For use behind the stream with this fence word: a block pending there, else an idle one. `bytes` is not 0. Nothing: add a segment.
  [[nodiscard]] std::optional<std::uint64_t> allocate(std::uint64_t bytes, std::uint32_t word, const AllocationOwner& owner);
  // A block that is pending in another stream; the caller sees to it that its stream waits for that one.
  [[nodiscard]] std::optional<Taken> allocate_behind_another(std::uint64_t bytes, const AllocationOwner& owner);
  // False if `address` is not the base of an allocation. Without a mark its work has ended.
  [[nodiscard]] bool free(std::uint64_t address, std::optional<Mark> mark);
  // Pending blocks for which reached(word, value) become idle.
  template <typename Reached>
  void reclaim(Reached&& reached) {
    for (auto& [word, blocks] : pending_) {
      for (auto block = blocks.begin(); block != blocks.end();) {
        const std::uint64_t address = (block++)->second;  // settle() takes it out, and what it is joined with is idle already
        if (reached(word, blocks_.at(address).mark_value)) settle(address);
      }
    }
    std::erase_if(pending_, [](const auto& entry) { return entry.second.empty(); });
  }
  [[nodiscard]] std::vector<std::uint32_t> pending_words() const;
  // Takes out wholly idle segments while more than `keep_bytes` are reserved.
  [[nodiscard]] std::vector<AddressRange> release(std::uint64_t keep_bytes);

  struct Found {
    AddressRange range;  // with the size that was asked for
    AllocationOwner owner;
  };
  // The allocation that holds `address`.
  [[nodiscard]] std::optional<Found> find(std::uint64_t address) const;
  [[nodiscard]] std::vector<std::uint64_t> allocations_of(CUcontext context) const;
  [[nodiscard]] bool is_unused() const { return usage_.used_bytes == 0; }
  [[nodiscard]] const Usage& usage() const { return usage_; }
  void reset_reserved_high() { usage_.reserved_high_bytes = usage_.reserved_bytes; }
  void reset_used_high() { usage_.used_high_bytes = usage_.used_bytes; }

 private:
  enum class State : std::uint8_t { idle, pending, used };
  struct Block {
    std::uint64_t size_bytes = 0;
    std::uint64_t segment = 0;  // its address
    State state = State::idle;
    std::uint32_t mark_word = 0;  // pending
    std::uint32_t mark_value = 0;
    std::uint64_t requested_bytes = 0;  // used
    AllocationOwner owner;
  };
  using Blocks = std::map<std::uint64_t, Block>;
  using Sizes = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // (size, address)

  [[nodiscard]] Sizes& sizes_for(const Block& block) { return block.state == State::idle ? idle_ : pending_[block.mark_word]; }
  void list(Blocks::iterator block) { sizes_for(block->second).emplace(block->second.size_bytes, block->first); }
  void unlist(Blocks::iterator block) { sizes_for(block->second).erase({block->second.size_bytes, block->first}); }
  [[nodiscard]] std::uint64_t take(Blocks::iterator block, std::uint64_t needed, std::uint64_t bytes, const AllocationOwner& owner);
  void join_and_list(Blocks::iterator block);
  void settle(std::uint64_t address);

  Blocks blocks_;  // by address, without gaps within a segment
  Sizes idle_;
  std::map<std::uint32_t, Sizes> pending_;           // by fence word
  std::map<std::uint64_t, std::uint64_t> segments_;  // address -> size
  Usage usage_;
};

}  // namespace mpsshim::interposer::forward
