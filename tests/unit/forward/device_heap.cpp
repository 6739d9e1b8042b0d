// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/device_heap.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <ranges>
#include <vector>

#include "tests/support/catch.hpp"

using mpsshim::interposer::forward::AddressRange;
using mpsshim::interposer::forward::AllocationOwner;
using mpsshim::interposer::forward::DeviceHeap;

namespace {

constexpr std::uint64_t kBase = 0x2000'0000'0000;
constexpr std::uint64_t kMiB = 1 << 20;

// What the heap promises, kept the simple way.
struct Model {
  std::map<std::uint64_t, std::uint64_t> allocations;  // address -> requested size
  std::map<std::uint64_t, std::uint64_t> numbers;      // address -> its owner's
  std::vector<AddressRange> chunks;

  const AddressRange* chunk_of(std::uint64_t address) const {
    for (const AddressRange& chunk : chunks) {
      if (chunk.holds(address, 1)) return &chunk;
    }
    return nullptr;
  }
  bool is_room_free(std::uint64_t address, std::uint64_t bytes) const {
    auto after = allocations.lower_bound(address);
    if (after != allocations.end() && after->first < address + bytes) return false;
    if (after == allocations.begin()) return true;
    --after;
    return after->first + after->second <= address;
  }
  std::uint64_t used_in(const AddressRange& chunk) const {
    std::uint64_t used = 0;
    for (const auto& [address, bytes] : allocations) {
      if (chunk.holds(address, 1)) used += (bytes + 511) / 512 * 512;
    }
    return used;
  }
};

std::optional<AddressRange> range_at(const DeviceHeap& heap, std::uint64_t address) {
  const auto found = heap.find(address);
  return found ? std::optional(found->range) : std::nullopt;
}

// One of three, and a number of its own.
AllocationOwner owner_of(std::uint64_t number) { return {reinterpret_cast<CUcontext>(number % 3 + 1), number}; }

}  // namespace

TEST_CASE("device heap: a hundred thousand random operations agree with a model") {
  DeviceHeap heap;
  Model model;
  std::mt19937_64 random(4711);
  std::uint64_t next_chunk = kBase;
  std::uint64_t free_model = 0;
  for (int step = 0; step < 100'000; ++step) {
    const bool allocate = model.allocations.size() < 20 || (random() % 2 == 0 && model.allocations.size() < 2000);
    if (allocate) {
      const std::uint64_t bytes = random() % 8 == 0 ? 1 + random() % (3 * kMiB) : 1 + random() % 4096;
      const AllocationOwner owner = owner_of(static_cast<std::uint64_t>(step));
      auto address = heap.allocate(bytes, owner);
      if (!address) {
        const AddressRange chunk{next_chunk, 4 * kMiB};
        next_chunk += 4 * kMiB;  // adjacent on purpose: blocks of two chunks must not join
        heap.add_chunk(chunk);
        model.chunks.push_back(chunk);
        free_model += chunk.size_bytes;
        address = heap.allocate(bytes, owner);
      }
      REQUIRE(address.has_value());
      REQUIRE(*address % DeviceHeap::kAlignment == 0);
      const AddressRange* chunk = model.chunk_of(*address);
      REQUIRE(chunk != nullptr);
      REQUIRE(chunk->holds(*address, bytes));
      REQUIRE(model.is_room_free(*address, bytes));
      model.allocations.emplace(*address, bytes);
      model.numbers[*address] = owner.buffer_id;
      free_model -= (bytes + 511) / 512 * 512;
    } else {
      auto victim = model.allocations.begin();
      std::advance(victim, static_cast<long>(random() % std::min<std::size_t>(model.allocations.size(), 50)));
      const auto [address, bytes] = *victim;
      const auto found = heap.find(address + bytes - 1);
      REQUIRE(found);
      REQUIRE(found->range == AddressRange{address, bytes});
      REQUIRE(found->chunk == model.chunk_of(address)->address);
      REQUIRE(found->owner.buffer_id == model.numbers.at(address));
      REQUIRE(found->owner.context == owner_of(found->owner.buffer_id).context);
      REQUIRE_FALSE(heap.free(address + 1).has_value());
      const auto freed = heap.free(address);
      REQUIRE(freed.has_value());
      REQUIRE_FALSE(heap.free(address).has_value());
      REQUIRE_FALSE(heap.find(address).has_value());
      model.numbers.erase(address);
      model.allocations.erase(victim);
      free_model += (bytes + 511) / 512 * 512;
      const AddressRange chunk = *model.chunk_of(address);
      const bool is_empty = model.used_in(chunk) == 0;
      REQUIRE((freed->size_bytes != 0) == is_empty);
      if (is_empty && random() % 2 == 0) {
        REQUIRE(*freed == chunk);
        heap.remove_chunk(*freed);
        std::erase(model.chunks, chunk);
        free_model -= chunk.size_bytes;
      }
    }
    REQUIRE(heap.free_bytes() == free_model);
    REQUIRE(heap.allocation_count() == model.allocations.size());
  }
  std::vector<std::uint64_t> of_the_first;
  heap.append_allocations_of(owner_of(0).context, of_the_first);
  std::erase_if(model.numbers, [](const auto& entry) { return entry.second % 3 != 0; });
  REQUIRE(of_the_first.size() > 10);
  CHECK(std::ranges::equal(of_the_first, model.numbers | std::views::keys));
}

TEST_CASE("device heap: find knows the asked size, not the rounded one") {
  DeviceHeap heap;
  heap.add_chunk({kBase, kMiB});
  const auto address = heap.allocate(100);
  REQUIRE(address == kBase);
  CHECK(range_at(heap, kBase + 99) == AddressRange{kBase, 100});
  CHECK_FALSE(heap.find(kBase + 100).has_value());
  CHECK_FALSE(heap.find(kBase - 1).has_value());
  CHECK_FALSE(heap.find(kBase + kMiB).has_value());
}

TEST_CASE("device heap: a chunk serves its whole size and not a byte more") {
  DeviceHeap heap;
  heap.add_chunk({kBase, kMiB});
  CHECK_FALSE(heap.allocate(kMiB + 1).has_value());
  CHECK_FALSE(heap.allocate(UINT64_MAX).has_value());
  REQUIRE(heap.allocate(kMiB) == kBase);
  CHECK_FALSE(heap.allocate(1).has_value());
  CHECK(heap.free(kBase) == AddressRange{kBase, kMiB});
}

TEST_CASE("device heap: best fit leaves the large block alone") {
  DeviceHeap heap;
  heap.add_chunk({kBase, kMiB});
  const auto first = heap.allocate(4096);
  const auto second = heap.allocate(4096);
  REQUIRE(second.has_value());
  REQUIRE(heap.free(*first).has_value());
  CHECK(heap.allocate(4096) == first);
}
