// SPDX-License-Identifier: Apache-2.0
// terminate_client: the session has its error at once, the command is answered when nothing of it runs any more.
#include <optional>

#include "broker/control/server/commands.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

struct Broker : ControlFixture {
  explicit Broker(SessionLimits limits = quick_limits()) : ControlFixture(limits) { serve(); }
  // Terminates one session. (By the command it would be all of this process.)
  void terminate(std::uint64_t session) {
    manager.terminate(*manager.find(session), [this] { ++stopped_sessions; });
  }
  int stopped_sessions = 0;
};

}  // namespace

TEST_CASE("work that ends within the grace costs no executor") {
  Broker broker;
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  const auto page = map_header(client.fds);
  ExecutorPeer& executor = broker.executor();
  executor.set_progress(0, attached.session, 2, 1);
  broker.terminate(attached.session);
  CHECK(state_in(page) == kFailed);
  CHECK(header_of(page).session_error == CUDA_ERROR_MPS_CLIENT_TERMINATED);
  executor.expect<message::SessionClose>();
  turn_for(broker.loop, 10);
  CHECK(broker.stopped_sessions == 0);
  executor.set_progress(0, 0, 2, 2);  // its stream lies in the pool
  REQUIRE(turn_until(broker.loop, [&] { return broker.stopped_sessions == 1; }));
  turn_for(broker.loop, 100);  // longer than grace and drain
  CHECK_FALSE(executor.killed);
  executor.send(message::SessionClosed{.session = attached.session});
  REQUIRE(turn_until(broker.loop, [&] { return broker.session(attached.session).phase == SessionPhase::lost; }));
  CHECK(client.ask<proto::Attached>(proto::Attach{}).lost == CUDA_ERROR_MPS_CLIENT_TERMINATED);
  client.hang_up();
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.sessions().empty(); }));
  CHECK(broker.stopped_sessions == 1);
}

TEST_CASE("work that does not end costs the executor, after the others have been waited for") {
  Broker broker;
  proto::Attached endless, idle, busy;
  TestClient a = broker.attach(&endless);
  TestClient b = broker.attach(&idle);
  const auto idle_page = map_header(b.fds);
  TestClient c = broker.attach(&busy);
  const auto busy_page = map_header(c.fds);
  ExecutorPeer& first = broker.executor();
  first.set_progress(0, endless.session, 1, 0);
  first.set_progress(1, idle.session, 1, 1);
  first.set_progress(2, busy.session, 4, 3);
  broker.terminate(endless.session);
  first.expect<message::SessionClose>();
  first.expect<message::Quiesce>();
  CHECK(state_in(busy_page) == kActive);
  first.set_progress(2, busy.session, 4, 4);
  broker.next_life(2);
  CHECK(first.killed);
  CHECK(broker.stopped_sessions == 1);
  CHECK(state_in(idle_page) == kMoved);
  CHECK(state_in(busy_page) == kMoved);
  CHECK(a.ask<proto::Attached>(proto::Attach{}).lost == CUDA_ERROR_MPS_CLIENT_TERMINATED);
}

TEST_CASE("who is idle is not taken to be drained before the executor reads no ring any more") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.drain = std::chrono::seconds(20);
  Broker broker(limits);
  proto::Attached endless, busy;
  TestClient a = broker.attach(&endless);
  TestClient b = broker.attach(&busy);
  const auto busy_page = map_header(b.fds);
  ExecutorPeer& first = broker.executor();
  first.set_progress(0, endless.session, 1, 0);
  broker.terminate(endless.session);
  first.expect<message::SessionClose>();
  first.expect<message::Quiesce>();
  turn_for(broker.loop, 20);
  CHECK_FALSE(first.killed);
  first.set_progress(1, busy.session, 5, 4);  // read before the message came
  first.send(message::Quiesced{});
  turn_for(broker.loop, 20);
  CHECK_FALSE(first.killed);
  first.set_progress(1, busy.session, 5, 5);
  broker.next_life(2);
  CHECK(first.killed);
  CHECK(state_in(busy_page) == kMoved);
}

TEST_CASE("a client that is killed while it is being terminated is gone, and the command answered") {
  Broker broker;
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  broker.executor().set_progress(0, attached.session, 1, 0);
  broker.terminate(attached.session);
  broker.executor().expect<message::SessionClose>();
  client.hang_up();
  REQUIRE(turn_until(broker.loop, [&] { return broker.stopped_sessions == 1 && broker.manager.sessions().empty(); }));
  CHECK(broker.launcher.lives.front()->killed);
}

TEST_CASE("whatever a session is about when it is terminated, it is answered and lost") {
  Broker broker;
  SECTION("it waits for its first attach") {
    TestClient client = broker.connect();
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    client.send(proto::Attach{});
    const std::uint64_t session = broker.executor().expect<message::SessionOpen>().message.session;
    broker.terminate(session);
    CHECK(client.await<proto::Attached>().lost == CUDA_ERROR_MPS_CLIENT_TERMINATED);
    broker.executor().expect<message::SessionClose>();
    broker.executor().send(message::SessionOpened{.session = session, .status = CUDA_ERROR_OUT_OF_MEMORY});
    REQUIRE(turn_until(broker.loop, [&] { return broker.session(session).phase == SessionPhase::lost; }));
  }
  SECTION("its executor has just died") {
    proto::Attached attached;
    TestClient client = broker.attach(&attached);
    broker.executor().die();
    REQUIRE(turn_until(broker.loop, [&] { return broker.session(attached.session).phase == SessionPhase::moved; }));
    broker.terminate(attached.session);
    CHECK(client.ask<proto::Attached>(proto::Attach{}).lost == CUDA_ERROR_MPS_CLIENT_TERMINATED);
  }
  CHECK(broker.stopped_sessions == 1);
}

TEST_CASE("the command names a server and a client of it") {
  Broker broker;
  std::optional<Commands::Result> answered;
  const Commands commands(broker.manager, nullptr);
  const auto execute = [&](const std::string& line) {
    answered.reset();
    commands.execute(line, [&](const Commands::Result& result) { answered = result; });
  };
  const std::string server = std::to_string(broker.executor().pid);
  const std::string own = std::to_string(getpid());
  for (const std::string& line : {std::string("terminate_client"), "terminate_client " + server, "terminate_client 1 " + own,
                                  "terminate_client " + server + " " + own, "terminate_client " + server + " x"}) {
    execute(line);
    INFO(line);
    REQUIRE(answered);
    CHECK_FALSE(answered->ok);
    CHECK(std::count(answered->text.begin(), answered->text.end(), '\n') == 0);
  }
  TestClient client = broker.attach();
  execute("terminate_client " + server + " " + own);
  broker.executor().expect<message::SessionClose>();
  REQUIRE(answered);  // no stream of it is in use: nothing runs
  CHECK(answered->ok);
  CHECK(answered->text == "0\n");
}
