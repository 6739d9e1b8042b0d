// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/staging_area.hpp"

#include <array>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

using mpsshim::interposer::forward::StagingArea;
using mpsshim::interposer::forward::StagingPiece;

namespace {

constexpr std::uint64_t kGranule = StagingArea::kGranuleBytes;
constexpr std::uint64_t kFirst = 0x10000000;

}  // namespace

TEST_CASE("staging area: without a block there is no room") {
  StagingArea area;
  CHECK_FALSE(area.take(1, 0).has_value());
  CHECK_FALSE(area.take(0, 0).has_value());
}

TEST_CASE("staging area: a stream has half of it, two have all") {
  StagingArea area;
  area.add_block(kFirst, 16 * kGranule);
  CHECK_FALSE(area.take(8 * kGranule + 1, 3).has_value());
  CHECK_FALSE(area.take(~0ull, 3).has_value());
  const auto half = area.take(8 * kGranule, 3);
  REQUIRE(half.has_value());
  CHECK_FALSE(area.take(1, 3).has_value());
  CHECK(area.held_bytes(3) == area.share_bytes());
  const auto other = area.take(8 * kGranule, 4);
  REQUIRE(other.has_value());
  CHECK(area.free_bytes() == 0);
  CHECK_FALSE(area.take(1, 5).has_value());
  area.give_back(*half);
  CHECK(area.held_bytes(3) == 0);
  CHECK(area.take(1, 3).has_value());
}

TEST_CASE("staging area: a piece lies in one block, a new block is used at once") {
  StagingArea area;
  area.add_block(kFirst, 4 * kGranule);
  area.add_block(kFirst + 4 * kGranule, 4 * kGranule);  // neighbours in memory, two blocks all the same
  REQUIRE(area.take(3 * kGranule, 1).has_value());
  const auto second = area.take(3 * kGranule, 2);
  REQUIRE(second.has_value());
  CHECK(second->address == kFirst + 4 * kGranule);
  CHECK_FALSE(area.take(2 * kGranule, 3).has_value());  // one granule free in each
  area.add_block(kFirst + 64 * kGranule, 64 * kGranule);
  const auto third = area.take(30 * kGranule, 3);
  REQUIRE(third.has_value());
  CHECK(third->address == kFirst + 64 * kGranule);
  CHECK(area.total_bytes() == 72 * kGranule);
}

TEST_CASE("staging area: pieces never overlap, lent ones come back in any order") {
  StagingArea area;
  std::vector<bool> used(1024);
  area.add_block(kFirst, 256 * kGranule);
  area.add_block(kFirst + 256 * kGranule, 768 * kGranule);
  std::mt19937 random(7);
  std::array<std::uint32_t, 8> reached{};
  std::uint32_t next_target = 0;
  const auto granules = [](const StagingPiece& piece) {
    return std::pair((piece.address - kFirst) / kGranule, (piece.size_bytes + kGranule - 1) / kGranule);
  };
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t bytes = 1 + random() % (random() % 4 == 0 ? 256 << 10 : 20'000);
    const auto word = static_cast<std::uint32_t>(random() % 8);
    if (const auto piece = area.take(bytes, word)) {
      REQUIRE(piece->size_bytes == bytes);
      REQUIRE(piece->word == word);
      const auto [first, count] = granules(*piece);
      REQUIRE(first + count <= 1024);
      REQUIRE((first >= 256 || first + count <= 256));
      for (auto granule = first; granule < first + count; ++granule) {
        REQUIRE_FALSE(used[granule]);
        used[granule] = true;
      }
      area.lend({*piece, mpsshim::proto::kNullStream, ++next_target});
      continue;
    }
    REQUIRE_FALSE(area.lent().empty());
    reached[random() % 8] = next_target - static_cast<std::uint32_t>(random() % 3);  // one word moves on, perhaps not quite to the end
    const auto is_reached = [&](std::uint32_t at, std::uint32_t target) { return target <= reached[at]; };
    for (const StagingArea::Lent& lent : area.lent()) {
      if (!is_reached(lent.piece.word, lent.target)) continue;
      const auto [first, count] = granules(lent.piece);
      for (auto granule = first; granule < first + count; ++granule) used[granule] = false;
    }
    area.reclaim(is_reached);
  }
  std::uint64_t free = 0;
  for (const bool granule : used) free += granule ? 0 : 1;
  CHECK(free * kGranule == area.free_bytes());
  area.reclaim([](std::uint32_t, std::uint32_t) { return true; });
  CHECK(area.free_bytes() == area.total_bytes());
  for (std::uint32_t word = 0; word < 8; ++word) CHECK(area.held_bytes(word) == 0);
}
