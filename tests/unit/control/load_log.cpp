// SPDX-License-Identifier: Apache-2.0
// The load log: what of it the next life of an executor, or another one, makes again, and what leaves it.
#include <set>
#include <vector>

#include "tests/unit/control/support/image_fixture.hpp"

using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr ExecutorId kFirst{0, 0};
constexpr ExecutorId kSecond{0, 1};

// A log and who has what of it.
struct Log : Images {
  void load(std::uint64_t image, std::uint64_t copy, std::uint32_t flags = 0, ExecutorId executor = kFirst) {
    REQUIRE(store.note({executor, LogKind::load, image, copy, flags}));
  }
  void unload(std::uint64_t image, std::uint64_t copy) { REQUIRE(store.note({kFirst, LogKind::unload, image, copy})); }
  void make(LogKind kind, std::uint64_t object, ExecutorId executor = kFirst) { REQUIRE(store.note({executor, kind, object})); }
  std::size_t shorten(ExecutorId executor = kFirst) { return store.shorten(executor, wanted()); }
  [[nodiscard]] ImageStore::Wanted wanted(std::uint64_t session = 1) {
    return {[this](const ImageStore::Entry& entry) { return owned.contains(entry.copy); },
            [this, session](std::uint64_t image) { return store.is_held(image, session); }};
  }
  // Copies, and objects of what else there is, in order.
  [[nodiscard]] std::vector<std::uint64_t> of(ExecutorId executor) const {
    std::vector<std::uint64_t> list;
    for (const ImageStore::Entry& entry : store.log()) {
      if (entry.executor == executor) list.push_back(entry.is_of_image() ? entry.copy : entry.object);
    }
    return list;
  }
  std::set<std::uint64_t> owned;  // copies
};

using List = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("without anybody's addresses a next life makes the loads that sessions would ask for, and nothing else") {
  Log log;
  const std::uint64_t held = log.add(1, "held");
  const std::uint64_t left = log.add(2, "left");
  log.make(LogKind::graph, 1001);
  log.load(left, 1);
  log.load(held, 2);
  log.load(left, 3, kLoadHasVariables);
  log.load(held, 4, kLoadHasVariables);  // of a client that is gone
  log.make(LogKind::stream, 1002, kSecond);
  log.load(held, 5, 0, kSecond);
  log.store.release_session(2);
  CHECK(log.shorten() == 4);
  CHECK(log.of(kFirst) == List{2});
  CHECK(log.of(kSecond) == List{1002, 5});
  CHECK(log.store.count() == 1);  // what nobody holds has gone with its loads
  log.store.release_session(1);
  CHECK(log.shorten() == 1);
  CHECK(log.shorten(kSecond) == 2);
  CHECK(log.store.log().empty());
  CHECK(log.store.count() == 0);
}

TEST_CASE("up to the last load in which a session has an address all is made again, whoever it was for") {
  Log log;
  const std::uint64_t held = log.add(1, "held");
  const std::uint64_t left = log.add(2, "left");
  log.load(left, 1);
  log.make(LogKind::stream, 1001);
  log.load(left, 2, kLoadHasVariables);
  log.unload(left, 1);
  log.load(held, 3, kLoadHasVariables);
  log.load(held, 4, kLoadHasVariables);
  log.make(LogKind::graph, 1002);
  log.load(left, 5);
  log.unload(left, 2);  // its load stays, so it does
  log.unload(left, 5);
  log.load(held, 6);
  log.load(held, 7);
  log.unload(held, 7);
  log.store.release_session(2);
  SECTION("a copy of its own") {
    log.owned = {3};
    CHECK(log.shorten() == 6);
    CHECK(log.of(kFirst) == List{1, 1001, 2, 1, 3, 2, 6});
    CHECK(log.shorten() == 0);
  }
  SECTION("code addresses in an image that it holds") {
    log.load(held, 8, kLoadTakesCodeAddresses);
    log.make(LogKind::stream, 1003);
    CHECK(log.shorten() == 1);
    CHECK(log.of(kFirst).back() == 8);
  }
  SECTION("not in one that it does not") {
    log.load(left, 8, kLoadTakesCodeAddresses);
    (void)log.shorten();
    CHECK(log.of(kFirst) == List{6});
  }
  SECTION("after a hand-over as before") {
    log.owned = {3};
    StateWriter state;
    log.store.save(state);
    std::string why;
    StateReader reader(state.finish(), why);
    ImageStore next(log.loop);
    next.restore(reader);
    REQUIRE(reader.ok());
    CHECK(next.shorten(kFirst, log.wanted()) == 6);
  }
}

TEST_CASE("another executor makes what one session needs, not what others do") {
  Log log;
  const std::uint64_t own = log.add(1, "own");
  const std::uint64_t plain = log.add(1, "plain");
  const std::uint64_t others = log.add(2, "others'");
  log.load(others, 1);
  log.load(own, 2, kLoadHasVariables);
  log.load(others, 3);
  log.make(LogKind::graph, 1001);
  log.load(plain, 4);
  log.owned = {2};
  log.store.copy_log(kFirst, kSecond, log.wanted(1));
  CHECK(log.of(kSecond) == List{1, 2, 4});
  CHECK(log.of(kFirst) == List{1, 2, 3, 1001, 4});
}

TEST_CASE("loads that were undone leave the log beyond a limit, and images that nothing else names go with them") {
  Images images;
  const ExecutorId executor{0, 0};
  const std::uint64_t kept = images.add(1, "still loaded");
  REQUIRE(images.store.note({executor, LogKind::load, kept, 1}));
  std::uint64_t copy = 2;
  const auto undo = [&](std::uint64_t image) {
    REQUIRE(images.store.note({executor, LogKind::load, image, copy}));
    REQUIRE(images.store.note({executor, LogKind::unload, image, copy++}));
  };
  for (std::size_t i = 0; i < kMaxUndoneImages; ++i) undo(images.add(2, "module " + std::to_string(i)));
  images.store.release_session(2);
  CHECK(images.store.count() == 1 + kMaxUndoneImages);
  CHECK(images.store.log().size() == 1 + 2 * kMaxUndoneImages);
  SECTION("as soon as the last session that holds one has ended") {
    undo(images.add(3, "one more"));
    CHECK(images.store.log().size() == 3 + 2 * kMaxUndoneImages);
    images.store.release_session(3);
  }
  SECTION("as soon as it is undone, where nobody holds it") {
    const std::uint64_t last = images.add(3, "one more");
    REQUIRE(images.store.note({executor, LogKind::load, last, copy}));
    images.store.release_session(3);
    CHECK(images.store.log().size() == 2 + 2 * kMaxUndoneImages);
    REQUIRE(images.store.note({executor, LogKind::unload, last, copy}));
  }
  CHECK(images.store.count() == 1);
  REQUIRE(images.store.log().size() == 1);
  CHECK(images.store.log().front().object == kept);
  images.store.release_session(1);
  CHECK(images.store.count() == 1);
  images.store.forget_log(executor);
  CHECK(images.store.count() == 0);
  CHECK(images.store.total_bytes() == 0);
  CHECK(images.store.held_by(1).count == 0);
}

TEST_CASE("loads of few images that were undone stay in the log, up to a limit of their own") {
  Log log;
  const std::uint64_t image = log.add(1, "again and again");
  for (std::uint64_t copy = 1; copy <= kMaxUndoneLoads; ++copy) {
    log.load(image, copy);
    log.unload(image, copy);
  }
  CHECK(log.store.log().size() == 2 * kMaxUndoneLoads);
  log.load(image, kMaxUndoneLoads + 1);
  log.load(image, kMaxUndoneLoads + 2);
  log.unload(image, kMaxUndoneLoads + 1);
  CHECK(log.of(kFirst) == List{kMaxUndoneLoads + 2});
}
