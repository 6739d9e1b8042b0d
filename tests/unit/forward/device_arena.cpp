// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/device_arena.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

using mpsshim::interposer::forward::AddressRange;
using mpsshim::interposer::forward::DeviceArena;

namespace {

constexpr std::uint64_t kKiB = 1 << 10;
constexpr std::uint64_t kMiB = 1 << 20;

// The executor's side: hands out address ranges side by side (blocks of two chunks must never join), first fit.
class Executor {
 public:
  AddressRange create(std::uint64_t bytes) {
    std::uint64_t address = 0x2000'0000'0000;
    for (const auto& [begin, size] : chunks_) {
      if (bytes <= begin - address) break;
      address = begin + size;
    }
    chunks_.emplace(address, bytes);
    mapped_ += bytes;
    return {address, bytes};
  }
  void release(const AddressRange& chunk) {
    const auto found = chunks_.find(chunk.address);
    REQUIRE(found != chunks_.end());
    REQUIRE(found->second == chunk.size_bytes);
    mapped_ -= chunk.size_bytes;
    chunks_.erase(found);
  }
  [[nodiscard]] bool holds(std::uint64_t address, std::uint64_t bytes) const {
    auto chunk = chunks_.upper_bound(address);
    if (chunk == chunks_.begin()) return false;
    --chunk;
    return AddressRange{chunk->first, chunk->second}.holds(address, bytes);
  }
  [[nodiscard]] std::uint64_t mapped() const { return mapped_; }
  [[nodiscard]] std::size_t count() const { return chunks_.size(); }

 private:
  std::map<std::uint64_t, std::uint64_t> chunks_;
  std::uint64_t mapped_ = 0;
};

// A program's allocations, kept the simple way, and what DeviceMemory does around the arena.
class Model {
 public:
  void allocate(std::uint64_t bytes) {
    auto address = arena.allocate(bytes);
    if (!address) {
      const std::uint64_t wanted = arena.chunk_bytes_for(bytes);
      REQUIRE(wanted >= DeviceArena::exact_chunk_bytes(bytes));
      arena.add_chunk(executor.create(wanted), bytes);
      address = arena.allocate(bytes);
    }
    REQUIRE(address.has_value());
    REQUIRE(*address % 512 == 0);
    REQUIRE(executor.holds(*address, bytes));
    const auto [place, is_new] = live_.emplace(*address, bytes);
    REQUIRE(is_new);
    const auto next = std::next(place);
    if (next != live_.end()) REQUIRE(*address + bytes <= next->first);
    if (place != live_.begin()) {
      const auto previous = std::prev(place);
      REQUIRE(previous->first + previous->second <= *address);
    }
    order_.push_back(*address);
    live_bytes += bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
  }
  void free(std::size_t which) {
    const std::uint64_t address = order_[which];
    const auto found = live_.find(address);
    REQUIRE(arena.find(address + found->second - 1)->range == AddressRange{address, found->second});
    leaving_.clear();
    REQUIRE(arena.free(address, leaving_));
    for (const AddressRange& chunk : leaving_) executor.release(chunk);
    live_bytes -= found->second;
    live_.erase(found);
    order_[which] = order_.back();
    order_.pop_back();
  }
  [[nodiscard]] std::size_t count() const { return order_.size(); }
  [[nodiscard]] std::uint64_t address(std::size_t which) const { return order_[which]; }
  void check_bound() const {
    REQUIRE(arena.mapped_bytes() == executor.mapped());
    REQUIRE(arena.empty_bytes() <= DeviceArena::kKeptBytes);
    REQUIRE(executor.mapped() <= peak_bytes + peak_bytes / 2 + DeviceArena::kKeptBytes);
  }

  DeviceArena arena;
  Executor executor;
  std::uint64_t live_bytes = 0;
  std::uint64_t peak_bytes = 0;

 private:
  std::map<std::uint64_t, std::uint64_t> live_;  // address -> size
  std::vector<std::uint64_t> order_;             // for picking one at random
  std::vector<AddressRange> leaving_;
};

// Sizes as programs ask for them: many small ones, some of a few MiB, few large ones.
std::uint64_t random_bytes(std::mt19937_64& random) {
  const std::uint64_t kind = random() % 1000;
  if (kind < 700) return 1 + random() % (16 * kKiB);
  if (kind < 900) return 1 + random() % (600 * kKiB);
  if (kind < 990) return 1 + random() % (8 * kMiB);
  return 1 + random() % (200 * kMiB);
}

}  // namespace

TEST_CASE("device arena: a million random operations agree with a model, and little is mapped for nothing") {
  constexpr int kSteps = 1'000'000;
  constexpr int kPhase = 50'000;  // the program grows, shrinks, grows to another size
  Model model;
  std::mt19937_64 random(20251121);
  std::size_t target = 1000;
  for (int step = 0; step < kSteps; ++step) {
    if (step % kPhase == 0) target = std::array<std::size_t, 5>{1000, 20, 4000, 300, 2000}[static_cast<std::size_t>(step / kPhase) % 5];
    const bool grows = model.count() == 0 || random() % (2 * target) >= model.count();
    if (grows) {
      model.allocate(random_bytes(random));
    } else {
      model.free(random() % model.count());
    }
    model.check_bound();
  }
  while (model.count() > 0) model.free(model.count() - 1);
  model.check_bound();
  CHECK(model.live_bytes == 0);
  CHECK(model.executor.mapped() == model.arena.empty_bytes());
  for (const AddressRange& chunk : model.arena.take_empty()) model.executor.release(chunk);
  CHECK(model.executor.mapped() == 0);
  CHECK(model.arena.mapped_bytes() == 0);
}

TEST_CASE("device arena: one small allocation that stays does not keep what large ones leave") {
  Model model;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 40; ++i) model.allocate(3 * kMiB);
    model.allocate(1000);  // stays
    while (model.count() > static_cast<std::size_t>(round) + 1) {
      std::size_t large = 0;
      while (model.arena.find(model.address(large))->range.size_bytes == 1000) ++large;
      model.free(large);
    }
  }
  CHECK(model.executor.mapped() - model.arena.empty_bytes() == DeviceArena::kGranularityBytes);
}

TEST_CASE("device arena: allocating and freeing in a loop meets no driver") {
  for (const std::uint64_t bytes : {std::uint64_t{1}, 64 * kKiB, 2 * kMiB, 33 * kMiB, 64 * kMiB}) {
    Model model;
    model.allocate(700 * kKiB);  // something else the program has had before and has freed
    model.free(0);
    model.allocate(bytes);
    model.free(0);
    const std::size_t chunks = model.executor.count();
    for (int i = 0; i < 10; ++i) {
      std::vector<AddressRange> leaving;
      const auto address = model.arena.allocate(bytes);
      REQUIRE(address.has_value());
      REQUIRE(model.arena.free(*address, leaving));
      REQUIRE(leaving.empty());
    }
    CHECK(model.executor.count() == chunks);
  }
}

TEST_CASE("device arena: the chunk that has been empty for longest goes first, and one larger than 64 MiB at once") {
  Model model;
  model.allocate(64 * kMiB);
  model.allocate(64 * kMiB);
  model.allocate(64 * kMiB);
  const std::uint64_t first = model.address(1);
  model.free(1);
  model.free(1);
  CHECK(model.executor.mapped() == 192 * kMiB);
  model.free(0);
  CHECK(model.executor.mapped() == DeviceArena::kKeptBytes);
  CHECK_FALSE(model.executor.holds(first, 1));
  model.allocate(100 * kMiB);
  model.free(0);
  CHECK(model.executor.mapped() == DeviceArena::kKeptBytes);
}

TEST_CASE("device arena: an empty chunk serves allocations of either kind") {
  Model model;
  model.allocate(2 * kMiB);
  model.free(0);
  model.allocate(100);
  CHECK(model.executor.count() == 1);
  model.free(0);
  model.allocate(2 * kMiB);
  CHECK(model.executor.count() == 1);
  CHECK(model.arena.empty_bytes() == 0);
}

TEST_CASE("device arena: sizes nobody has are asked for as they are, and strange addresses are refused") {
  DeviceArena arena;
  CHECK(arena.chunk_bytes_for(UINT64_MAX) == UINT64_MAX);
  CHECK(arena.chunk_bytes_for(1) == DeviceArena::kGranularityBytes);
  CHECK_FALSE(arena.allocate(UINT64_MAX).has_value());
  std::vector<AddressRange> leaving;
  CHECK_FALSE(arena.free(0, leaving));
  arena.add_chunk({0x2000'0000'0000, 2 * kMiB}, 1);
  CHECK_FALSE(arena.free(0x2000'0000'0000, leaving));
  REQUIRE(arena.allocate(1000).has_value());
  CHECK_FALSE(arena.free(0x2000'0000'0200, leaving));
  CHECK(arena.free(0x2000'0000'0000, leaving));
  CHECK_FALSE(arena.free(0x2000'0000'0000, leaving));
  CHECK(leaving.empty());
}
