// SPDX-License-Identifier: Apache-2.0
// Fences of event records that are written behind later work, and what happens once the client wants them.
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr std::uint32_t kEager = 32;  // records behind an ask, and at first

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId id = client.add_function(function);
  proto::EventId event = client.add_event(1, CU_EVENT_DISABLE_TIMING);
  proto::EventId timed = client.add_event(2);
  std::uint32_t last = 0;  // fence

  Fixture() {
    executor.fake.hold_work();
    word().asks.store(1);
  }

  void record(proto::EventId recorded) {
    client.post(proto::EventRecordRecord{recorded, ++last, 0});
    client.turn(false);
  }
  void step(proto::EventId recorded) {
    client.post_launch(id, last);
    record(recorded);
  }
  void step() { step(event); }
  // From here on fences of records are owed: nobody has looked for any, and words are under way.
  void go_on_for_long() {
    for (std::uint32_t i = 0; i < kEager; ++i) {
      if (i % 16 == 0) executor.fake.complete();  // more would be too much in flight
      step();
    }
    executor.fake.complete();
    step();
    executor.fake.forget_calls();
  }
  [[nodiscard]] std::size_t writes() const { return executor.fake.calls(FakeCall::write).size(); }
  [[nodiscard]] proto::FenceWord& word() const { return client.channel().fence(0); }
};

}  // namespace

TEST_CASE("fences of records that nobody looks for are owed while the GPU is behind") {
  Fixture f;
  f.go_on_for_long();
  CHECK(f.word().owed.load() == 0);
  for (int i = 0; i < 10; ++i) f.step();
  CHECK(f.executor.fake.calls(FakeCall::record).size() == 10);
  CHECK(f.writes() == 0);
  CHECK(f.word().owed.load() == f.last);
  SECTION("the next words bring them") {
    f.client.post_fence(++f.last);
    f.client.turn(false);
    f.executor.fake.complete();
    CHECK(f.client.fence() == f.last);
  }
  SECTION("so does progress, with the last of them") {
    f.client.session().streams().write_progress();
    f.executor.fake.complete();
    CHECK(f.client.fence() == f.last);
  }
  f.client.turn(false);
  CHECK(f.client.session().streams().is_idle());
}

TEST_CASE("a library that does not know of owed fences is owed none") {
  Fixture f;
  f.word().asks.store(0);
  f.go_on_for_long();
  for (int i = 0; i < 10; ++i) f.step();
  CHECK(f.writes() == 20);
  CHECK(f.word().owed.load() == 0);
}

TEST_CASE("an event of a stream that has caught up has its fence at once") {
  Fixture f;
  f.go_on_for_long();
  f.executor.fake.complete();
  f.step();
  CHECK(f.writes() == 2);  // fence and progress
  f.executor.fake.complete();
  CHECK(f.client.fence() == f.last);
}

TEST_CASE("an owed fence that the client wants is there when its event is, whatever follows") {
  Fixture f;
  f.go_on_for_long();
  const proto::EventId recorded = GENERATE(false, true) ? f.timed : f.event;
  for (int i = 0; i < 3; ++i) f.step(recorded);
  const std::uint32_t wanted = f.last - 1;
  f.word().wanted.store(wanted);
  f.client.turn(false);
  CHECK(f.client.fence() < wanted - 1);
  CHECK_FALSE(f.client.session().streams().settle_fences());  // the worker comes again
  for (int i = 0; i < 20 && f.client.fence() != wanted; ++i) {
    const std::uint32_t before = f.client.fence();
    f.executor.fake.complete(1);
    f.client.turn(false);
    REQUIRE(f.client.fence() <= wanted);
    REQUIRE(f.client.fence() >= before);
  }
  REQUIRE(f.client.fence() == wanted);
  CHECK(f.client.session().streams().settle_fences());
  CHECK_FALSE(f.client.session().streams().is_idle());  // the third launch
  f.executor.fake.complete();
  f.client.session().streams().write_progress();
  f.executor.fake.complete();
  f.client.turn(false);
  CHECK(f.client.fence() == f.last);
  CHECK(f.client.session().streams().is_idle());
}

TEST_CASE("an ask is answered when it has been looked since, though the work goes on") {
  Fixture f;
  f.go_on_for_long();
  const std::uint32_t known = f.client.fence();
  for (int i = 0; i < 24; ++i) f.record(f.event);
  f.word().asks.store(7);
  f.client.turn(false);
  CHECK(f.word().answers.load() == 7);
  CHECK(f.client.fence() == known);
  f.executor.fake.complete();
  f.word().asks.store(8);
  f.client.turn(false);
  CHECK(f.word().answers.load() == 7);  // so many are looked at in turns
  f.client.turn(false);
  CHECK(f.word().answers.load() == 8);
  CHECK(f.client.fence() == f.last);
}

TEST_CASE("who looks for fences of records has them written at once for a while") {
  Fixture f;
  f.go_on_for_long();
  SECTION("also one that comes between its look and its record") {
    f.word().asks.store(2);
    f.word().wanted.store(f.last + 1);
    f.step();
    CHECK(f.writes() == 2);
    for (int i = 0; i < 10; ++i) f.step();
    CHECK(f.writes() == 22);
    f.go_on_for_long();
    f.step();
    CHECK(f.writes() == 0);
  }
  SECTION("not who waits for the stream, but for what it waits for") {
    f.word().wanted.store(f.last + 1);
    f.step();
    CHECK(f.writes() == 2);
    for (int i = 0; i < 10; ++i) f.step();
    CHECK(f.writes() == 2);
  }
}

TEST_CASE("words never set back what was found by an event") {
  Fixture f;
  f.go_on_for_long();
  f.step();
  f.client.session().streams().write_progress();  // tells of the first
  f.step();
  f.word().wanted.store(f.last);
  f.executor.fake.complete();
  f.client.turn(false);
  CHECK(f.client.fence() == f.last);
  f.client.session().streams().write_progress();
  f.executor.fake.complete();
  CHECK(f.client.fence() == f.last);
}

}  // namespace mpsshim::test
