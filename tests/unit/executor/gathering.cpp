// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <vector>

#include "broker/executor/chains/chain_pieces.hpp"
#include "broker/executor/streams/gathering.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::broker;

namespace {

using Functions = std::vector<const void*>;

// A program that launches so many functions, one behind the other, again and again.
Functions program(std::size_t functions, std::size_t launches) {
  Functions all;
  for (std::size_t i = 0; i < launches; ++i) all.push_back(reinterpret_cast<const void*>(0x7f00'0000'1000 + 0x2c0 * (i % functions)));
  return all;
}

std::size_t piece_of(std::span<const void* const> run) { return piece_length(run.size(), run.first(std::min(run.size(), kPieceLook))); }

// Where a run is cut that begins at `begin`.
std::set<std::size_t> cuts(const Functions& all, std::size_t begin) {
  std::set<std::size_t> found;
  for (std::size_t at = begin; all.size() - at > kPieceLook;) found.insert(at += piece_of(std::span(all).subspan(at)));
  return found;
}

}  // namespace

TEST_CASE("a short run is one piece, and one of few kernels is for the longest chains") {
  for (std::size_t launches = 1; launches <= kLongestExactChain; ++launches) CHECK(piece_of(program(40, launches)) == launches);
  for (const std::size_t functions : {1U, 2U, 4U}) {
    INFO(functions << " functions");
    CHECK(piece_of(program(functions, 9)) == 8);
    CHECK(piece_of(program(functions, 33)) == 32);
    CHECK(piece_of(program(functions, 100)) == 64);
  }
}

TEST_CASE("other runs are cut into pieces of five to eight, at the same places wherever they begin") {
  const Functions all = program(40, 1'000);
  const std::set<std::size_t> first = cuts(all, 0);
  CHECK(first.size() >= 990 / 8);
  CHECK(first.size() <= 990 / 5);
  for (std::size_t begin = 1; begin < 40; ++begin) {
    INFO("beginning at " << begin);
    const std::set<std::size_t> other = cuts(all, begin);
    CHECK(std::ranges::includes(first, std::set(other.lower_bound(200), other.end())));
  }
}

TEST_CASE("a run waits for more launches for a moment, each time anew") {
  Gathering gathering;
  Gathering::Clock::time_point now{std::chrono::seconds(1)};
  unsigned looks = 0;
  const auto clock = [&] { return ++looks, now; };
  for (int run = 0; run < 2; ++run) {
    CHECK(gathering.waits(true, clock));
    now += Gathering::kLongest - std::chrono::microseconds(1);
    CHECK(gathering.waits(true, clock));
    now += std::chrono::microseconds(1);
    CHECK_FALSE(gathering.waits(true, clock));
  }
  CHECK(gathering.waits(true, clock));
  now += Gathering::kLongest;
  looks = 0;
  CHECK_FALSE(gathering.waits(false, clock));  // something stands behind it
  CHECK(looks == 0);
  CHECK(gathering.waits(true, clock));
}

TEST_CASE("a worker is short of time while several sessions keep it busy, until much less is to be done") {
  TimeShortage shortage;
  const auto note = [&](unsigned percent, std::size_t sessions, unsigned locked = 0) {
    for (int look = 0; look < 40; ++look) shortage.note(percent, locked, sessions);
    return shortage.is_short();
  };
  CHECK_FALSE(note(60, 4));
  CHECK_FALSE(note(100, 1));
  CHECK(note(80, 2));
  CHECK(note(40, 2));
  CHECK_FALSE(note(20, 2));
  CHECK_FALSE(note(60, 2));
  shortage.note(100, 100, 8);
  CHECK_FALSE(shortage.is_short());  // a moment says nothing
  CHECK_FALSE(note(0, 8, 20));
  CHECK_FALSE(note(0, 1, 90));
  CHECK(note(0, 2, 25));
  CHECK(note(0, 2, 12));
  CHECK_FALSE(note(0, 2, 8));
}
