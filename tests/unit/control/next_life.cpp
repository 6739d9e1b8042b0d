// SPDX-License-Identifier: Apache-2.0
// After an executor's death: who comes into the next life, and what that one is given.
#include "tests/unit/control/support/control_fixture.hpp"
#include "tests/unit/control/support/kept_variables.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

TEST_CASE("an attach that waits while the executor dies is answered by the next") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.answer = std::chrono::milliseconds(2000);
  ControlFixture broker(limits);
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  client.send(proto::Attach{});
  broker.executor().expect<message::SessionOpen>();
  broker.executor().die();
  broker.next_life(2).open_session();
  const auto attached = client.await<proto::Attached>();
  CHECK(attached.header.status == CUDA_SUCCESS);
  CHECK(attached.epoch == 2);
}

TEST_CASE("a moved client that leaves needs no executor") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.executor().die();
  broker.next_life(2);
  client.hang_up();
  CHECK(turn_until(broker.loop, [&] { return broker.manager.sessions().empty(); }));
  CHECK_FALSE(broker.executor().receive());
}

TEST_CASE("two deaths in a row: the session still moves, its memory with it") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.create_chunk(attached.session, attached.device_lease.address, "x");
  broker.executor().die();
  broker.next_life(2).die();
  ExecutorPeer& third = broker.next_life(3);
  client.send(proto::Attach{});
  third.expect<message::ChunkRestore>();
  third.open_session();
  CHECK(client.await<proto::Attached>().epoch == 3);
}

TEST_CASE("a restored session that the executor refuses is lost, with the reason, and its memory goes") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.create_chunk(attached.session, attached.device_lease.address, "x");
  broker.executor().die();
  ExecutorPeer& next = broker.next_life(2);
  client.send(proto::Attach{});
  next.expect<message::ChunkRestore>();
  next.expect<message::SessionOpen>();
  next.send(message::SessionOpened{.session = attached.session, .status = CUDA_ERROR_OUT_OF_MEMORY});
  const auto answer = client.await<proto::Attached>();
  CHECK(answer.header.status == CUDA_SUCCESS);
  CHECK(answer.lost == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(broker.session(attached.session).chunks.all().empty());
}

TEST_CASE("a session that executors die of while it is opened is given up after the second") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.answer = std::chrono::milliseconds(2000);
  ControlFixture broker(limits);
  broker.serve();
  proto::Attached bystander;
  TestClient other = broker.attach(&bystander);
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  client.send(proto::Attach{});
  broker.executor().expect<message::SessionOpen>();
  broker.executor().die();
  ExecutorPeer& second = broker.next_life(2);
  second.expect<message::SessionOpen>();
  second.die();
  CHECK(client.await<proto::Attached>().header.status == CUDA_ERROR_MPS_SERVER_NOT_READY);
  ExecutorPeer& third = broker.next_life(3);
  other.send(proto::Attach{});
  third.open_session();
  CHECK(other.await<proto::Attached>().session == bystander.session);
}

TEST_CASE("a session its executor had failed stays failed through a move") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  const auto page = map_header(client.fds);
  header_of(page).session_error = CUDA_ERROR_INVALID_HANDLE;
  header_of(page).session_state = kFailed;  // as an executor does for a malformed record
  CHECK(client.ask<proto::Attached>(proto::Attach{}).lost == CUDA_ERROR_INVALID_HANDLE);
  broker.executor().die();
  broker.next_life(2);
  CHECK(state_in(page) == kFailed);
}

TEST_CASE("what takes device memory besides loads is made again in its order, up to the last load in which a client has an address") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  ExecutorPeer& serving = broker.executor();
  const auto note = [&](LogKind kind) {
    const std::size_t before = broker.manager.images().log().size();
    serving.send(message::ModuleNote{.kind = kind});
    REQUIRE(turn_until(broker.loop, [&] { return broker.manager.images().log().size() == before + 1; }));
  };
  const LogKind made[] = {LogKind::stream, LogKind::side_contexts, LogKind::graph};
  for (const LogKind kind : made) note(kind);
  broker.load_image(serving, client, "module image", kLoadTakesCodeAddresses);
  for (const LogKind kind : made) note(kind);
  serving.die();
  ExecutorPeer& next = broker.next_life(2);
  for (const LogKind kind : made) CHECK(next.expect<message::LoadReplay>().message.kind == kind);
  CHECK(next.expect<message::LoadReplay>().message.kind == LogKind::load);
  client.send(proto::Attach{});
  next.expect<message::SessionOpen>();  // and nothing of what was made behind the load
  CHECK(broker.manager.images().log().size() == std::size(made) + 1);
}

TEST_CASE("what is kept of a session's variables goes to the next life, where its copy of the image is its own") {
  ControlFixture broker;
  broker.serve();
  proto::Attached owner;
  TestClient a = broker.attach(&owner);
  const std::uint64_t image = load_copy(a, broker.executor(), "module image", 3);
  broker.executor().send(message::ModuleNote{.object = image, .copy = 4, .kind = LogKind::load});  // another copy, nobody's
  keep_variables(broker.loop, broker.executor(), broker.session(owner.session), image, 3);
  broker.executor().die();
  ExecutorPeer& next = broker.next_life(2);
  const auto its_copy = next.expect<message::LoadReplay>();
  CHECK(its_copy.message.copy == 3);
  CHECK(its_copy.message.session == owner.session);
  const auto free_copy = next.expect<message::LoadReplay>();
  CHECK(free_copy.message.copy == 4);
  CHECK(free_copy.message.session == 0);
  SECTION("it comes back") {
    a.send(proto::Attach{});
    const auto restored = next.expect<message::VariablesRestore>();
    CHECK(restored.message.session == owner.session);
    CHECK(proto::sealed_size(restored.fds.variables).value_or(0) >= sizeof(KeptVariablesFile));
    next.open_session();
    CHECK(a.await<proto::Attached>().lost == 0);
  }
  SECTION("it does not") {
    a.hang_up();
    CHECK(next.expect<message::VariablesForget>().message.session == owner.session);
  }
}

TEST_CASE("what was a standby is told whose a copy is by now") {
  ExecutorSettings settings = ControlFixture::settings({"libtest.so"});
  settings.standby = StandbyKind::warm;
  settings.warm_delay = std::chrono::milliseconds(5);
  ControlFixture broker(ControlFixture::quick_limits(), settings);
  broker.serve();
  ExecutorPeer& serving = broker.executor();
  proto::Attached first, second;
  TestClient a = broker.attach_to(serving, &first);
  TestClient b = broker.attach_to(serving, &second);
  const std::uint64_t image = load_copy(a, serving, "module image", 3);
  serving.send(message::ModuleNote{.object = image, .copy = 4, .kind = LogKind::load});
  keep_variables(broker.loop, serving, broker.session(first.session), image, 3);
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 2; }));
  ExecutorPeer& standby = broker.launcher.last();
  standby.ready();
  CHECK(standby.expect<message::LoadReplay>().message.session == first.session);
  CHECK(standby.expect<message::LoadReplay>().message.session == 0);
  // It ends, and another one gets the copy that nobody had.
  keep_variables(broker.loop, serving, broker.session(second.session), image, 4);
  a.hang_up();
  serving.expect<message::SessionClose>();
  serving.send(message::SessionClosed{.session = first.session});
  REQUIRE(turn_until(broker.loop, [&] { return !broker.has_session(first.session); }));
  serving.die();
  for (const auto& [copy, owner] : {std::pair<std::uint64_t, std::uint64_t>{3, 0}, {4, second.session}}) {
    const auto reserved = standby.expect<message::CopyReserve>();
    CHECK(reserved.message.image == image);
    CHECK(reserved.message.copy == copy);
    CHECK(reserved.message.session == owner);
  }
}

TEST_CASE("who does not survive its executor keeps no variables") {
  ControlFixture broker;
  broker.serve();
  proto::Attached owner;
  TestClient a = broker.attach(&owner);
  const std::uint64_t image = load_copy(a, broker.executor(), "module image", 3);
  keep_variables(broker.loop, broker.executor(), broker.session(owner.session), image, 3);
  broker.executor().set_progress(0, owner.session, 2, 1);
  broker.executor().die();
  ExecutorPeer& next = broker.next_life(2);
  turn_for(broker.loop, 20);
  CHECK_FALSE(next.receive());  // nor is its copy loaded for anybody
  CHECK_FALSE(broker.session(owner.session).variables.valid());
}
