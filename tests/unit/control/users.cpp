// SPDX-License-Identifier: Apache-2.0
// A broker for several users: who is served where, and what nobody has of another one.
#include <unistd.h>

#include "broker/control/server/commands.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr uid_t kAda = 1001, kBob = 1002;

struct Users : ControlFixture {
  explicit Users(bool shares = false, unsigned executors = 2, int idle_ms = 10'000) : ControlFixture(limits(shares, executors, idle_ms)) { serve(); }
  static SessionLimits limits(bool shares, unsigned executors, int idle_ms) {
    SessionLimits limits = limits_with(executors, idle_ms);
    limits.serves_all_users = true;
    limits.shares_executors = shares;
    return limits;
  }
  TestClient ask(uid_t user) {
    TestClient client = connect(user);
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    client.send(proto::Attach{});
    return client;
  }
  ExecutorPeer& life(std::size_t number) {
    REQUIRE(turn_until(loop, [&] { return launcher.lives.size() > number; }));
    return *launcher.lives.at(number);
  }
  // Attached in an executor of its own, which is started for it as the `number`th life.
  TestClient attach_in_new(uid_t user, std::size_t number, proto::Attached& answer) {
    TestClient client = ask(user);
    life(number).ready();
    life(number).open_session();
    answer = client.await<proto::Attached>();
    REQUIRE(answer.header.status == CUDA_SUCCESS);
    return client;
  }
  const ManagedExecutor* executor_of(const proto::Attached& attached) { return session(attached.session).executor; }
};

void starve(ExecutorPeer& executor, std::uint64_t who, std::uint64_t by) {
  message::Starved packet{.session = who, .blocker = by};
  set_text(packet.text, "cuModuleLoadData");
  executor.send(packet);
}

CUresult offer(TestClient& client, const proto::ContentDigest& digest, std::uint64_t size_bytes, bool& is_known) {
  proto::ImageOffer request;
  request.size_bytes = size_bytes;
  request.digest = digest;
  const auto opened = client.ask<proto::ImageOpened>(request);
  is_known = client.fds.count == 0;
  return static_cast<CUresult>(opened.header.status);
}

}  // namespace

#define ONLY_AS_ROOT() \
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user")

TEST_CASE("users: each has executors of its own, the broker's user those that stay") {
  ONLY_AS_ROOT();
  Users broker;
  proto::Attached own, ada, bob, ada_again;
  const TestClient home = broker.attach(&own);
  const TestClient first = broker.attach_in_new(kAda, 1, ada);
  const TestClient second = broker.attach_in_new(kBob, 2, bob);
  TestClient third = broker.ask(kAda);
  broker.life(1).open_session();
  ada_again = third.await<proto::Attached>();
  CHECK(broker.executor_of(own)->label() == "0");
  CHECK(broker.executor_of(ada)->label() == "0@1001");
  CHECK(broker.executor_of(ada_again) == broker.executor_of(ada));
  CHECK(broker.executor_of(bob)->label() == "0@1002");
  CHECK(broker.launcher.lives.size() == 3);
  std::string table;
  Commands(broker.manager, nullptr).execute("ps -l", [&](const Commands::Result& result) { table = result.text; });
  CHECK(table.find(" 1001 ") != std::string::npos);
  CHECK(table.find(" USER ") != std::string::npos);
}

TEST_CASE("users: with --share-executors all are in one") {
  ONLY_AS_ROOT();
  Users broker(true);
  proto::Attached own;
  const TestClient home = broker.attach(&own);
  TestClient other = broker.ask(kAda);
  broker.executor().open_session();
  CHECK(broker.executor_of(other.await<proto::Attached>()) == broker.executor_of(own));
}

TEST_CASE("users: an executor of another user ends after its last client, and comes again") {
  ONLY_AS_ROOT();
  Users broker(false, 2, 50);
  proto::Attached ada;
  {
    TestClient client = broker.attach_in_new(kAda, 1, ada);
    client.hang_up();
    broker.life(1).expect<message::SessionClose>();
    broker.life(1).send(message::SessionClosed{.session = ada.session});
  }
  broker.life(1).expect<message::Quit>();
  broker.life(1).die();
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.executors().size() == 1; }));
  const TestClient client = broker.attach_in_new(kAda, 2, ada);
  CHECK(broker.executor_of(ada)->label() == "0@1001");
  CHECK_FALSE(broker.launcher.lives.at(0)->dead);
}

TEST_CASE("users: who starves moves to an executor of the same user, never to another's that is free") {
  ONLY_AS_ROOT();
  Users broker;
  proto::Attached own, endless, waiting;
  const TestClient home = broker.attach(&own);
  const TestClient blocker = broker.attach_in_new(kAda, 1, endless);
  TestClient starved = broker.ask(kAda);
  broker.life(1).open_session();
  waiting = starved.await<proto::Attached>();
  broker.life(1).set_progress(0, endless.session, 1, 0);
  starve(broker.life(1), waiting.session, endless.session);
  CHECK(broker.life(2).options.label == "0.1@1001");
  proto::Attached bob;  // --executors counts for each user
  const TestClient other = broker.attach_in_new(kBob, 3, bob);
  CHECK(broker.executor_of(bob)->label() == "0@1002");
}

TEST_CASE("users: one executor that cannot be had is refused to its user alone, and not tried again at once") {
  ONLY_AS_ROOT();
  Users broker;
  TestClient client = broker.ask(kAda);
  broker.life(1).ready(CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(client.await<proto::Attached>().header.status == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(client.ask<proto::Attached>(proto::Attach{}).header.status == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(broker.launcher.lives.size() == 2);
  TestClient home = broker.ask(0);
  broker.life(0).open_session();
  CHECK(home.await<proto::Attached>().header.status == CUDA_SUCCESS);
}

TEST_CASE("users: what one user's kernels leave on the device's heap renews that user's executor, beside others at work, out of that user's time") {
  ONLY_AS_ROOT();
  Users broker;
  proto::Attached own, ada, bob;
  const TestClient home = broker.attach(&own);
  broker.life(0).set_progress(0, own.session, 2, 1);  // at work all the while
  const auto leave = [&](uid_t user, std::size_t in, proto::Attached& attached) {
    TestClient client = broker.ask(user);
    broker.life(in).open_session();
    attached = client.await<proto::Attached>();
    broker.life(in).send(message::HeapUsed{.session = attached.session});
    client.hang_up();
    broker.life(in).expect<message::SessionClose>();
    broker.life(in).send(message::SessionClosed{.session = attached.session});
  };
  const auto is_renewed_by = [&](std::size_t life, std::size_t before, const char* label, int limit_ms) {
    if (!turn_until(broker.loop, [&] { return broker.launcher.lives.size() > life; }, limit_ms)) return false;
    CHECK(broker.life(before).dead);
    CHECK(broker.life(life).options.label == label);
    turn_for(broker.loop, 100);  // so that a tenth of the time is more than the test takes
    broker.life(life).ready();
    return true;
  };
  {
    const TestClient starts_it = broker.attach_in_new(kAda, 1, ada);
    const TestClient starts_another = broker.attach_in_new(kBob, 2, bob);
  }
  for (const auto& [life, attached] : {std::pair(1u, &ada), std::pair(2u, &bob)}) {
    broker.life(life).expect<message::SessionClose>();
    broker.life(life).send(message::SessionClosed{.session = attached->session});
  }
  leave(kAda, 1, ada);
  REQUIRE(is_renewed_by(3, 1, "0@1001", 1000));
  leave(kAda, 3, ada);
  CHECK_FALSE(is_renewed_by(4, 3, "0@1001", 300));  // its tenth is used
  leave(kBob, 2, bob);
  REQUIRE(is_renewed_by(4, 2, "0@1002", 500));
  CHECK(is_renewed_by(5, 3, "0@1001", 2000));
  CHECK_FALSE(broker.life(0).dead);
}

TEST_CASE("users: a digest tells nobody what another user has loaded, and images are each user's own") {
  ONLY_AS_ROOT();
  Users broker;
  proto::Attached ada, bob, more;
  TestClient first = broker.attach_in_new(kAda, 1, ada);
  TestClient second = broker.attach_in_new(kBob, 2, bob);
  TestClient third = broker.ask(kAda);
  broker.life(1).open_session();
  more = third.await<proto::Attached>();
  const std::string content = "an image of Ada's";
  (void)broker.load_image(broker.life(1), first, content);
  proto::ContentHash hash;
  hash.add(std::as_bytes(std::span(content)));
  const proto::ContentDigest digest = hash.finish();
  bool is_known = false;
  CHECK(offer(third, digest, content.size(), is_known) == CUDA_SUCCESS);
  CHECK(is_known);
  CHECK(offer(second, digest, content.size(), is_known) == CUDA_SUCCESS);
  CHECK_FALSE(is_known);
}
