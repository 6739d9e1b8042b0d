// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/address_set.hpp"

#include <chrono>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

using mpsshim::broker::AddressSet;

namespace {

constexpr std::uint64_t kBase = 0x2000'0000'0000;
constexpr std::uint64_t kUnit = 0x1000;

}  // namespace

TEST_CASE("ranges that touch are one, and a part may be taken out of the middle") {
  AddressSet set;
  set.add(100, 10);
  set.add(120, 10);
  CHECK_FALSE(set.contains(100, 30));
  set.add(110, 10);
  CHECK(set.contains(100, 30));
  CHECK_FALSE(set.contains(100, 31));
  CHECK_FALSE(set.contains(99, 2));
  REQUIRE(set.remove(105, 20));
  CHECK(set.contains(100, 5));
  CHECK_FALSE(set.contains(100, 6));
  CHECK(set.contains(125, 5));
  CHECK_FALSE(set.remove(104, 2));  // the half of it
  CHECK(set.contains(100, 5));
}

TEST_CASE("whatever is within some addresses is taken out, and nothing else") {
  AddressSet set;
  for (std::uint64_t i = 0; i < 5; ++i) set.add(100 + 20 * i, 10);
  set.remove_within(105, 60);  // 105 to 164: a half, two, and a part
  CHECK(set.contains(100, 5));
  CHECK_FALSE(set.contains(105, 1));
  CHECK_FALSE(set.contains(120, 1));
  CHECK_FALSE(set.contains(149, 1));
  CHECK_FALSE(set.contains(164, 1));
  CHECK(set.contains(165, 5));
  CHECK(set.contains(180, 10));
  set.remove_within(170, 10);  // nothing is there
  CHECK(set.contains(165, 5));
  CHECK(set.contains(180, 10));
  set.remove_within(0, UINT64_MAX);
  CHECK(set.is_empty());
  set.remove_within(0, UINT64_MAX);
}

TEST_CASE("questions with the largest numbers overflow nothing") {
  AddressSet set;
  set.add(100, 10);
  CHECK_FALSE(set.contains(UINT64_MAX, UINT64_MAX));
  CHECK_FALSE(set.contains(105, UINT64_MAX));
  CHECK_FALSE(set.remove(105, UINT64_MAX - 104));
  CHECK(set.find(UINT64_MAX, 1) == 0);
  CHECK(set.find(UINT64_MAX, std::uint64_t{1} << 63) == 0);
  CHECK(set.find(1, std::uint64_t{1} << 63) == 0);
}

TEST_CASE("a place is in the smallest range that has room behind its alignment") {
  AddressSet set;
  set.add(1'000, 100);
  set.add(2'000, 50);
  set.add(4'000, 60);
  CHECK(set.find(50, 1) == 2'000);
  CHECK(set.find(51, 1) == 4'000);
  CHECK(set.find(101, 1) == 0);
  CHECK(set.find(40, 64) == 1'024);  // 2048 and 4032 leave too little behind them
}

// Against a set that knows every unit.
TEST_CASE("any order of additions and removals") {
  constexpr std::size_t kUnits = 400;
  std::vector<bool> model(kUnits, false);
  AddressSet set;
  std::mt19937 random(3);
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t first = random() % kUnits;
    const std::size_t count = 1 + random() % std::min<std::size_t>(20, kUnits - first);
    bool all = true, none = true;
    for (std::size_t i = first; i < first + count; ++i) (model[i] ? none : all) = false;
    REQUIRE(set.contains(kBase + first * kUnit, count * kUnit) == all);
    if (none) {
      set.add(kBase + first * kUnit, count * kUnit);
      for (std::size_t i = first; i < first + count; ++i) model[i] = true;
    } else {
      REQUIRE(set.remove(kBase + first * kUnit, count * kUnit) == all);
      if (all) for (std::size_t i = first; i < first + count; ++i) model[i] = false;
    }
    const std::uint64_t found = set.find(count * kUnit, kUnit);
    if (found != 0) REQUIRE(set.contains(found, count * kUnit));
    std::size_t run = 0, longest = 0;
    for (const bool is_in : model) longest = std::max(longest, run = is_in ? run + 1 : 0);
    REQUIRE((found != 0) == (longest >= count));
  }
}

TEST_CASE("very many ranges cost no more than a few do, nearly") {
  using Clock = std::chrono::steady_clock;
  AddressSet set;
  constexpr std::uint64_t kMany = 65'536;
  for (std::uint64_t i = 0; i < kMany; ++i) set.add(kBase + 2 * i * kUnit, kUnit);
  const auto began = Clock::now();
  for (int i = 0; i < 1'000; ++i) REQUIRE(set.find(2 * kUnit, kUnit) == 0);
  CHECK(Clock::now() - began < std::chrono::milliseconds(100));  // a walk through all takes a second
}
