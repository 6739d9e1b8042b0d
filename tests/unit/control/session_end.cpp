// SPDX-License-Identifier: Apache-2.0
// How sessions end: hang-up, and work that outlives its client. Death seen by the pidfd is in broker_process.cpp.
#include <fcntl.h>

#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

// A descriptor of the broker that is alive as long as the kernel object is: one end of a pipe.
struct Tracked {
  proto::FileDescriptor ours;
  proto::FileDescriptor theirs;
};
Tracked tracked() {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  return {proto::FileDescriptor(ends[0]), proto::FileDescriptor(ends[1])};
}
bool is_released(const Tracked& handle) {
  char byte = 0;
  return read(handle.ours.get(), &byte, 1) == 0;  // end of file: nobody holds the other end
}

void create_chunk(ControlFixture& broker, std::uint64_t session, std::uint64_t address, Tracked& handle) {
  broker.executor().send({message::ChunkCreated{.session = session, .chunk = address, .size_bytes = 2u << 20}, {.handle = handle.theirs.get()}});
  handle.theirs.reset();
  REQUIRE(turn_until(broker.loop, [&] { return broker.session(session).chunks.all().contains(address); }));
}

}  // namespace

TEST_CASE("hang-up: the executor closes the session, then its memory goes") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  Tracked chunk = tracked();
  create_chunk(broker, attached.session, attached.device_lease.address, chunk);
  client.hang_up();
  broker.executor().expect<message::SessionClose>();
  CHECK(broker.session(attached.session).phase == SessionPhase::closing);
  CHECK_FALSE(is_released(chunk));
  broker.executor().send(message::SessionClosed{.session = attached.session});
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.sessions().empty(); }));
  CHECK(is_released(chunk));
}

TEST_CASE("a chunk that was released is no longer held") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  Tracked chunk = tracked();
  create_chunk(broker, attached.session, attached.device_lease.address, chunk);
  broker.executor().send(message::ChunkReleased{.session = attached.session, .chunk = attached.device_lease.address});
  CHECK(turn_until(broker.loop, [&] { return is_released(chunk); }));
}

TEST_CASE("a client that leaves while its session is being opened") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  client.send(proto::Attach{});
  const auto open = broker.executor().expect<message::SessionOpen>();
  client.hang_up();
  broker.executor().expect<message::SessionClose>();
  broker.executor().send(message::SessionOpened{.session = open.message.session});
  broker.executor().send(message::SessionClosed{.session = open.message.session});
  CHECK(turn_until(broker.loop, [&] { return broker.manager.sessions().empty(); }));
}

TEST_CASE("a client that leaves before any executor is ready") {
  ControlFixture broker;
  TestClient client = broker.connect();
  client.send(proto::Hello{});
  turn_for(broker.loop, 10);
  client.hang_up();
  turn_for(broker.loop, 10);
  broker.serve();
  CHECK(broker.manager.sessions().empty());
}

TEST_CASE("leases of ended sessions are not handed out again at once") {
  ControlFixture broker;
  broker.serve();
  proto::Attached first;
  TestClient client = broker.attach(&first);
  client.hang_up();
  broker.executor().expect<message::SessionClose>();
  broker.executor().send(message::SessionClosed{.session = first.session});
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.sessions().empty(); }));
  proto::Attached second;
  TestClient other = broker.attach(&second);
  CHECK(second.session != first.session);
  CHECK(second.device_lease.address != first.device_lease.address);
  CHECK(second.pinned_lease.address != first.pinned_lease.address);
}

TEST_CASE("slow release without running work does not cost the executor") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  client.hang_up();
  broker.executor().expect<message::SessionClose>();
  turn_for(broker.loop, 150);  // five times the grace
  CHECK(broker.launcher.lives.size() == 1);
  CHECK_FALSE(broker.executor().dead);
}

TEST_CASE("work that outlives its client costs the executor, others are drained, then move") {
  ControlFixture broker;
  broker.serve();
  proto::Attached gone;
  proto::Attached idle;
  proto::Attached quick;
  proto::Attached slow;
  TestClient a = broker.attach(&gone);
  TestClient b = broker.attach(&idle);
  const auto idle_page = map_header(b.fds);
  TestClient c = broker.attach(&quick);
  const auto quick_page = map_header(c.fds);
  TestClient d = broker.attach(&slow);
  const auto slow_page = map_header(d.fds);
  ExecutorPeer& first = broker.executor();
  first.set_progress(0, gone.session, 1, 0);
  first.set_progress(1, quick.session, 7, 6);
  first.set_progress(2, slow.session, 3, 2);
  a.hang_up();
  first.expect<message::SessionClose>();
  first.expect<message::Quiesce>();
  CHECK(broker.manager.executors().at({0, 0})->state() == ExecutorState::draining);
  first.set_progress(1, quick.session, 7, 7);  // ends within the time for draining
  REQUIRE(turn_until(broker.loop, [&] { return first.killed; }));
  broker.next_life(2);
  CHECK_FALSE(broker.has_session(gone.session));
  CHECK(header_of(idle_page).session_state == static_cast<std::uint32_t>(proto::SessionState::moved));
  CHECK(header_of(quick_page).session_state == static_cast<std::uint32_t>(proto::SessionState::moved));
  CHECK(header_of(slow_page).session_state == static_cast<std::uint32_t>(proto::SessionState::failed));
  CHECK(header_of(slow_page).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
}

TEST_CASE("work of a gone client that ends within the grace costs nothing") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.orphan = std::chrono::seconds(20);  // no pause of this machine ends it
  ControlFixture broker(limits);
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.executor().set_progress(0, attached.session, 1, 0);
  client.hang_up();
  broker.executor().expect<message::SessionClose>();
  turn_for(broker.loop, 10);
  broker.executor().set_progress(0, attached.session, 1, 1);
  broker.executor().send(message::SessionClosed{.session = attached.session});
  CHECK(turn_until(broker.loop, [&] { return broker.manager.sessions().empty(); }));
  CHECK(broker.launcher.lives.size() == 1);
}

TEST_CASE("clients that leave work without end behind, one after the other, do not make the service pause") {
  ExecutorSettings settings = ControlFixture::settings({"libtest.so"});
  settings.retry_delay = std::chrono::seconds(60);
  SessionLimits limits = ControlFixture::quick_limits();
  limits.quarantine.faults = 0;
  ControlFixture broker(limits, settings);
  broker.serve();
  for (std::size_t life = 1; life <= 6; ++life) {
    proto::Attached gone;
    TestClient client = broker.attach(&gone);
    ExecutorPeer& executor = broker.executor();
    executor.set_progress(0, gone.session, 1, 0);
    client.hang_up();
    REQUIRE(turn_until(broker.loop, [&] { return executor.killed; }));
    (void)broker.next_life(life + 1);
  }
}

TEST_CASE("a program whose clients leave work without end behind comes into quarantine, as for faults") {
  ControlFixture broker(ControlFixture::limits_with(2));
  broker.serve();
  for (std::size_t life = 1; life <= 3; ++life) {
    proto::Attached gone;
    TestClient client = broker.attach(&gone);
    broker.executor().set_progress(0, gone.session, 1, 0);
    client.hang_up();
    (void)broker.next_life(life + 1);
  }
  TestClient newcomer = broker.connect();
  REQUIRE(newcomer.hello().header.status == CUDA_SUCCESS);
  newcomer.send(proto::Attach{});
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 5; }));
  CHECK(broker.executor().options.label == "0.1");
}
