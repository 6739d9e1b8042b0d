// SPDX-License-Identifier: Apache-2.0
// Who is about to use the device's heap goes where it is blank: when, and when not.
#include "tests/unit/control/support/starving_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

// Of the starving fixture's two clients one has memory of the heap; a third has had some, and has ended. The other is about to use it.
struct Heaps : Starving {
  explicit Heaps(unsigned executors = 2) : Starving(ControlFixture::limits_with(executors)) {
    first().send(message::HeapUsed{.session = blocker.session});
  }
  void leave_something(ExecutorPeer& executor, bool uses_heap = true) {
    TestClient client = connect();
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    client.send(proto::Attach{});
    executor.open_session();
    const auto attached = client.await<proto::Attached>();
    REQUIRE(attached.header.status == CUDA_SUCCESS);
    if (uses_heap) executor.send(message::HeapUsed{.session = attached.session});
    client.hang_up();
    executor.expect<message::SessionClose>();
    executor.send(message::SessionClosed{.session = attached.session});
    REQUIRE(turn_until(loop, [&] { return !has_session(attached.session); }));
  }
  // Who wants it is asked to pause, a second executor being there.
  void see_it_asked() {
    REQUIRE(turn_until(loop, [&] { return launcher.lives.size() == 2; }));
    second().ready();
    (void)expect_pause();
  }
  // To the second executor.
  void see_it_move() {
    see_it_asked();
    answer_pause();
    CHECK(first().expect<message::SessionClose>().message.session == starved.session);
    waiting->send(proto::Attach{});
    second().open_session();
    REQUIRE(waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
  }
  void want(std::uint32_t flags = 0) { first().send(message::HeapWanted{.session = starved.session, .flags = flags}); }
  [[nodiscard]] bool is_given() { return first().expect<message::HeapGiven>().message.session == starved.session; }
};

}  // namespace

TEST_CASE("heap: who finds a blank one stays, whoever else uses it") {
  Heaps broker;
  broker.leave_something(broker.first(), false);
  broker.want();
  CHECK(broker.is_given());
  CHECK(broker.launcher.lives.size() == 1);
}

TEST_CASE("heap: who would find what a client that has ended has left moves to an executor with a blank one") {
  Heaps broker;
  broker.leave_something(broker.first());
  broker.want();
  broker.see_it_move();
  broker.second().send(message::HeapWanted{.session = broker.starved.session});  // the call comes again
  CHECK(broker.second().expect<message::HeapGiven>().message.session == broker.starved.session);
  CHECK(broker.session(broker.blocker.session).phase == SessionPhase::active);
}

TEST_CASE("heap: what a client that is ending has there counts as left") {
  Heaps broker;
  broker.endless->hang_up();
  broker.first().expect<message::SessionClose>();
  broker.want();
  broker.see_it_asked();  // expect_pause() holds it against who wants it
}

TEST_CASE("heap: an executor of the further ones that has something left on it ends with its last client") {
  Heaps broker;
  broker.leave_something(broker.first());
  broker.want();
  broker.see_it_move();
  broker.second().send(message::HeapUsed{.session = broker.starved.session});
  broker.waiting->hang_up();
  broker.second().expect<message::SessionClose>();
  broker.second().send(message::SessionClosed{.session = broker.starved.session});
  broker.second().expect<message::Quit>();  // others end after 10 s without a client
}

TEST_CASE("heap: who cannot move, or finds no other executor, is given the one there is") {
  SECTION("what it has cannot go elsewhere") {
    Heaps broker;
    broker.leave_something(broker.first());
    broker.want(kStarvesInPlace);
    CHECK(broker.is_given());
    CHECK(broker.launcher.lives.size() == 1);
  }
  SECTION("there is one executor") {
    Heaps broker(1);
    broker.leave_something(broker.first());
    broker.want();
    CHECK(broker.is_given());
  }
  SECTION("its own work does not end") {
    Heaps broker;
    broker.leave_something(broker.first());
    broker.want();
    broker.see_it_asked();
    CHECK(broker.stays());
    CHECK(broker.is_given());
  }
  SECTION("the other one cannot be started") {
    Heaps broker;
    broker.leave_something(broker.first());
    broker.want();
    REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
    broker.second().ready(CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK(broker.stays());
    CHECK(broker.is_given());
  }
}

TEST_CASE("heap: what was left goes with the executor's life") {
  Heaps broker;
  broker.leave_something(broker.first());
  broker.first().die();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  broker.waiting->send(proto::Attach{});
  broker.second().open_session();
  REQUIRE(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
  broker.second().send(message::HeapWanted{.session = broker.starved.session});
  CHECK(broker.second().expect<message::HeapGiven>().message.session == broker.starved.session);
  CHECK(broker.launcher.lives.size() == 2);
}
