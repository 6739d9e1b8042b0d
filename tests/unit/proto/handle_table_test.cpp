// SPDX-License-Identifier: Apache-2.0
#include "proto/handle_table.hpp"

#include <set>
#include <thread>

#include "tests/support/catch.hpp"

using namespace mpsshim::proto;

namespace {
using Table = HandleTable<HandleKind::event, int>;
}

TEST_CASE("a handle table finds only what is in it") {
  Table table;
  const EventId id = table.add(std::make_unique<int>(7));
  REQUIRE(id.has_kind());
  REQUIRE(table.find(id));
  CHECK(*table.find(id) == 7);

  SECTION("another kind with the same index and generation") { CHECK_FALSE(table.find(EventId{StreamId::make(id.index(), id.generation()).value})); }
  SECTION("another generation") { CHECK_FALSE(table.find(EventId::make(id.index(), id.generation() + 1))); }
  SECTION("generation 0") { CHECK_FALSE(table.find(EventId{id.value & ~(std::uint64_t{kGenerationMask} << 32)})); }
  SECTION("an index beyond the table") { CHECK_FALSE(table.find(EventId::make(Table::kMaxEntries, 1))); }
  SECTION("an index never used") { CHECK_FALSE(table.find(EventId::make(id.index() + 1, 1))); }
  SECTION("taken out") {
    CHECK(*table.take(id) == 7);
    CHECK_FALSE(table.find(id));
    CHECK(table.take(id) == nullptr);
  }
}

TEST_CASE("ids of tables of different realms are never the same, and each table knows its own alone") {
  Table first, other(3);
  const EventId one = first.add(std::make_unique<int>(1));
  EventId two = other.add(std::make_unique<int>(2));
  CHECK(one.index() == two.index());
  CHECK(one.realm() == 0);
  CHECK(two.realm() == 3);
  CHECK_FALSE(first.find(two));
  CHECK_FALSE(other.find(one));
  // Over and over, the realm stays, and no id comes back.
  for (int i = 0; i < 1000; ++i) {
    const EventId before = two;
    REQUIRE(other.take(two) != nullptr);
    two = other.add(std::make_unique<int>(i));
    REQUIRE(two.realm() == 3);
    REQUIRE(two.has_kind());
    REQUIRE_FALSE(other.find(before));
  }
  // An executor takes them as they are.
  Table peer;
  CHECK(peer.insert(two, std::make_unique<int>(5)));
  CHECK(*peer.find(two) == 5);
}

TEST_CASE("a reused index has another generation") {
  Table table;
  const EventId first = table.add(std::make_unique<int>(1));
  REQUIRE(table.take(first));
  const EventId second = table.add(std::make_unique<int>(2));
  CHECK(second.index() == first.index());
  CHECK(second.generation() != first.generation());
  CHECK_FALSE(table.find(first));
}

TEST_CASE("an index kept back is not reused before its release") {
  Table table;
  const EventId first = table.add(std::make_unique<int>(1));
  REQUIRE(table.take(first, false));
  CHECK(table.add(std::make_unique<int>(2)).index() != first.index());
  table.release_index(first.index());
  CHECK(table.add(std::make_unique<int>(3)).index() == first.index());
}

TEST_CASE("inserting under a peer's id checks it") {
  Table table;
  CHECK(table.insert(EventId::make(3, 9), std::make_unique<int>(1)));
  CHECK_FALSE(table.insert(EventId::make(3, 10), std::make_unique<int>(1)));                  // index in use
  CHECK_FALSE(table.insert(EventId::make(Table::kMaxEntries, 1), std::make_unique<int>(1)));  // out of range
  CHECK_FALSE(table.insert(EventId{StreamId::make(4, 1).value}, std::make_unique<int>(1)));   // another kind
  CHECK(*table.find(EventId::make(3, 9)) == 1);
}

TEST_CASE("threads add and find at the same time") {
  Table table;
  constexpr int kThreads = 4;
  constexpr int kEach = 2'000;
  std::vector<std::vector<EventId>> ids(kThreads);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        ids[t].push_back(table.add(std::make_unique<int>(t * kEach + i)));
        const auto found = table.find(ids[t][static_cast<std::size_t>(i / 2)]);
        if (!found || *found != t * kEach + i / 2) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  std::set<std::uint64_t> distinct;
  for (const auto& list : ids) {
    for (const EventId id : list) distinct.insert(id.value);
  }
  CHECK(distinct.size() == kThreads * kEach);
}
