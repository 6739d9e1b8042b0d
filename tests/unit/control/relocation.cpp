// SPDX-License-Identifier: Apache-2.0
// Who starves in an executor moves to another: when, with what, and what stays behind.
#include "tests/unit/control/support/starving_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

TEST_CASE("who starves is paused, told, and opened in a second executor with its memory") {
  Starving broker;
  add_chunk(broker, broker.first(), broker.starved.device_lease.address);
  broker.move();
  CHECK(header_of(broker.page).session_state == kMoved);
  CHECK(broker.second().options.label == "0.1");
  broker.waiting->send(proto::Attach{});
  CHECK(broker.second().expect<message::ChunkRestore>().message.chunk == broker.starved.device_lease.address);
  broker.second().open_session();
  const auto again = broker.waiting->await<proto::Attached>();
  CHECK(again.session == broker.starved.session);
  CHECK(again.epoch > broker.starved.epoch);  // though it is each executor's first life
  CHECK(again.device_lease.address == broker.starved.device_lease.address);
  // The other one is where it was.
  CHECK(broker.session(broker.blocker.session).phase == SessionPhase::active);
  CHECK_FALSE(broker.first().dead);
}

TEST_CASE("who does not come to rest stays, and so does who cannot move") {
  Starving broker;
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  broker.expect_pause();
  CHECK(broker.stays());  // no answer within the limit
  broker.starve();
  broker.expect_pause();
  broker.answer_pause(CUDA_ERROR_NOT_PERMITTED);
  CHECK(broker.stays());
}

TEST_CASE("times of events go with who moves, and with nobody who goes on first") {
  Starving broker;
  const auto leave_times = [&] {
    const proto::FileDescriptor file = proto::create_memory_file("test-times", 4096);
    broker.first().send({message::EventTimes{.session = broker.starved.session}, {.times = file.get()}});
  };
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  broker.expect_pause();
  leave_times();
  const bool moves = GENERATE(true, false);
  broker.answer_pause(moves ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED);
  if (moves) {
    broker.first().expect<message::SessionClose>();
    broker.waiting->send(proto::Attach{});
    broker.second().expect<message::EventTimesRestore>();
    broker.second().open_session();
    REQUIRE(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
    broker.second().die();  // the next one does not get them: they may be older than the session's last events
  } else {
    REQUIRE(broker.stays());
    broker.first().die();
  }
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  broker.executor().ready();
  broker.waiting->send(proto::Attach{});
  CHECK(broker.executor().expect<message::SessionOpen>().message.session == broker.starved.session);
}

TEST_CASE("for who cannot go elsewhere no executor is started, but newcomers are placed elsewhere") {
  Starving broker;
  broker.starve(kStarvesInPlace);
  turn_for(broker.loop, 20);
  CHECK(broker.launcher.lives.size() == 1);
  CHECK_FALSE(broker.first().receive());
  TestClient newcomer = broker.connect();
  REQUIRE(newcomer.hello().header.status == CUDA_SUCCESS);
  newcomer.send(proto::Attach{});
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
}

TEST_CASE("a pause that comes too late is no move") {
  Starving broker;
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.second().ready();
  broker.expect_pause();
  REQUIRE(broker.stays());
  broker.answer_pause();
  turn_for(broker.loop, 20);
  CHECK(header_of(broker.page).session_state == kActive);
  CHECK_FALSE(broker.first().receive());
  const std::uint64_t former = broker.order.order;
  broker.starve();
  CHECK(broker.expect_pause().order != former);
  broker.order.order = former;
  broker.answer_pause();
  turn_for(broker.loop, 20);
  CHECK(header_of(broker.page).session_state == kActive);
}

TEST_CASE("with one executor who starves stays, as does who waits for itself") {
  {
    Starving broker(ControlFixture::limits_with(1));
    broker.starve();
    CHECK(broker.stays());
    CHECK(broker.launcher.lives.size() == 1);
  }
  Starving broker;
  broker.blocker.session = broker.starved.session;
  broker.starve();
  CHECK(broker.stays());
  CHECK(broker.launcher.lives.size() == 1);
}

TEST_CASE("what an executor says of a session that has left it changes nothing") {
  Starving broker;
  add_chunk(broker, broker.first(), broker.starved.device_lease.address);
  broker.move();
  broker.waiting->send(proto::Attach{});
  broker.second().expect<message::ChunkRestore>();
  broker.second().open_session();
  REQUIRE(broker.waiting->await<proto::Attached>().header.status == CUDA_SUCCESS);
  broker.first().send(message::ChunkReleased{.session = broker.starved.session, .chunk = broker.starved.device_lease.address});
  add_chunk(broker, broker.first(), broker.starved.device_lease.address + 8192);
  broker.first().send(message::SessionClosed{.session = broker.starved.session});
  turn_for(broker.loop, 20);
  CHECK(broker.session(broker.starved.session).chunks.all().size() == 1);
  CHECK(broker.session(broker.starved.session).phase == SessionPhase::active);
}

TEST_CASE("addresses are taken until the executor that was left has let go of them") {
  SessionLimits limits = ControlFixture::limits_with(2);
  Starving broker(limits);
  broker.move();
  const std::uint64_t address = broker.starved.device_lease.address;
  broker.waiting->hang_up();
  REQUIRE(turn_until(broker.loop, [&] { return !broker.has_session(broker.starved.session); }));
  Remnants remnants;
  const ManagedExecutor& first = *broker.manager.executors().at({0, 0});
  remnants.add(first, 5);
  CHECK(remnants.keep(5, {{address, 1}, {}}));
  CHECK_FALSE(remnants.keep(6, {}));
  CHECK(remnants.remove(first, 6).empty());
  const auto free = remnants.remove(first, 5);
  REQUIRE(free.size() == 1);
  CHECK(free[0].device.address == address);
  broker.first().send(message::SessionClosed{.session = broker.starved.session});
  turn_for(broker.loop, 20);
  CHECK_FALSE(broker.first().dead);
}

TEST_CASE("a client that leaves while its move is prepared leaves nothing") {
  Starving broker(ControlFixture::limits_with(2, 30));
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  broker.waiting->hang_up();
  broker.first().expect<message::SessionClose>();
  broker.first().send(message::SessionClosed{.session = broker.starved.session});
  broker.second().ready();
  broker.second().expect<message::Quit>();
  broker.second().die();
  CHECK(turn_until(broker.loop, [&] { return broker.manager.executors().size() == 1; }));
}
