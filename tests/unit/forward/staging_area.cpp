// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/staging_area.hpp"

#include <array>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

using mpsshim::interposer::forward::StagingArea;
using mpsshim::interposer::forward::StagingPiece;

TEST_CASE("staging area: all of it can be taken, and nothing beyond") {
  StagingArea area;
  CHECK_FALSE(area.take(0).has_value());
  CHECK_FALSE(area.take(StagingArea::kBytes + 1).has_value());
  const auto all = area.take(StagingArea::kBytes);
  REQUIRE(all.has_value());
  CHECK_FALSE(area.take(1).has_value());
  area.give_back(*all);
  CHECK(area.free_granules() == StagingArea::kGranules);
}

TEST_CASE("staging area: pieces never overlap, lent ones come back in any order") {
  StagingArea area;
  std::mt19937 random(7);
  std::array<bool, StagingArea::kGranules> used{};
  std::array<std::uint32_t, 8> reached{};
  std::uint32_t next_target = 0;
  const auto granules = [](const StagingPiece& piece) {
    return std::pair(piece.offset / StagingArea::kGranuleBytes, (piece.size_bytes + StagingArea::kGranuleBytes - 1) / StagingArea::kGranuleBytes);
  };
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t bytes = 1 + random() % (random() % 4 == 0 ? 1 << 20 : 20'000);
    if (const auto piece = area.take(bytes)) {
      REQUIRE(piece->size_bytes == bytes);
      REQUIRE(piece->offset + bytes <= StagingArea::kBytes);
      const auto [first, count] = granules(*piece);
      for (auto granule = first; granule < first + count; ++granule) {
        REQUIRE_FALSE(used[granule]);
        used[granule] = true;
      }
      area.lend({*piece, mpsshim::proto::kNullStream, static_cast<std::uint32_t>(random() % 8), ++next_target});
      continue;
    }
    REQUIRE_FALSE(area.lent().empty());
    reached[random() % 8] = next_target - static_cast<std::uint32_t>(random() % 3);  // one word moves on, perhaps not quite to the end
    const auto is_reached = [&](std::uint32_t word, std::uint32_t target) { return target <= reached[word]; };
    for (const StagingArea::Lent& lent : area.lent()) {
      if (!is_reached(lent.word, lent.target)) continue;
      const auto [first, count] = granules(lent.piece);
      for (auto granule = first; granule < first + count; ++granule) used[granule] = false;
    }
    area.reclaim(is_reached);
  }
  std::uint32_t free = 0;
  for (const bool granule : used) free += granule ? 0 : 1;
  CHECK(area.free_granules() == free);
}
