// SPDX-License-Identifier: Apache-2.0
// Kernels without end in every executor: how many those of one kind may block, and who makes room when all are blocked.
#include <unistd.h>

#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr uid_t kAda = 1001;

struct Blocked : ControlFixture {
  Blocked(unsigned executors, std::chrono::milliseconds blocked, bool shares = false) : ControlFixture(limits(executors, blocked, shares)) {
    serve();
    lives_.push_back(&executor());
  }
  static SessionLimits limits(unsigned executors, std::chrono::milliseconds blocked, bool shares) {
    SessionLimits limits = limits_with(executors);
    limits.blocked = blocked;
    limits.resources.process_sessions = 16;  // all are this process
    limits.serves_all_users = limits.shares_executors = shares;
    return limits;
  }
  struct Member {
    std::unique_ptr<TestClient> client;
    proto::Mapping page;
    std::uint64_t id = 0;
  };
  // Attached in the executor of that number.
  Member join(std::size_t number, uid_t user = 0) {
    auto client = std::make_unique<TestClient>(connect(user));
    REQUIRE(client->hello().header.status == CUDA_SUCCESS);
    client->send(proto::Attach{});
    life(number).open_session();
    const auto attached = client->await<proto::Attached>();
    REQUIRE(attached.header.status == CUDA_SUCCESS);
    auto page = map_header(client->fds);
    return {std::move(client), std::move(page), attached.session};
  }
  ExecutorPeer& life(std::size_t number) {
    while (lives_.size() <= number) {
      REQUIRE(turn_until(loop, [&] { return launcher.lives.size() > lives_.size(); }));
      lives_.push_back(launcher.lives.at(lives_.size()).get());
      lives_.back()->ready();
    }
    return *lives_[number];
  }
  // A kernel of it goes on and on there, on a stream of its own.
  void spin(std::size_t number, const Member& member) { life(number).set_progress(member.id, member.id, 1, 0); }
  void starve(std::size_t number, const Member& who, const Member& by) {
    message::Starved packet{.session = who.id, .blocker = by.id};
    set_text(packet.text, "cuModuleLoadData");
    life(number).send(packet);
  }
  // Starves in one, and goes on in another.
  void move(Member& who, const Member& by, std::size_t from, std::size_t to) {
    starve(from, who, by);
    (void)life(to);
    const message::SessionPause order = life(from).expect<message::SessionPause>().message;
    life(from).send(message::SessionPaused{.session = who.id, .order = order.order, .flags = order.flags});
    life(from).expect<message::SessionClose>();
    who.client->send(proto::Attach{});
    life(to).open_session();
    REQUIRE(who.client->await<proto::Attached>().header.status == CUDA_SUCCESS);
    who.page = map_header(who.client->fds);
  }
  bool stays(std::size_t number, const Member& who) { return life(number).expect<message::Stay>().message.session == who.id; }

 private:
  std::vector<ExecutorPeer*> lives_;
};

}  // namespace

TEST_CASE("of three executors one user's kernels block two at most, the last is for the others") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  Blocked broker(3, std::chrono::milliseconds(0), true);
  Blocked::Member other = broker.join(0);
  const Blocked::Member first = broker.join(0, kAda);
  broker.spin(0, first);
  broker.move(other, first, 0, 1);
  const Blocked::Member second = broker.join(1, kAda);
  broker.spin(1, second);
  broker.move(other, second, 1, 2);
  const Blocked::Member third = broker.join(0, kAda);  // beside its like
  broker.starve(0, third, first);
  CHECK(broker.stays(0, third));
  const Blocked::Member newcomer = broker.join(2);
  CHECK(broker.launcher.lives.size() == 3);
}

TEST_CASE("when all executors are blocked for so long and somebody waits, the last of the kernels has to end") {
  Blocked broker(2, std::chrono::milliseconds(1'500));
  const Blocked::Member first = broker.join(0);
  Blocked::Member last = broker.join(0), waiting = broker.join(0);
  broker.spin(0, first);
  broker.move(last, first, 0, 1);
  broker.move(waiting, first, 0, 1);
  broker.spin(1, last);
  broker.starve(1, waiting, last);
  CHECK(broker.stays(1, waiting));  // its time is not over
  CHECK(header_of(last.page).session_state == kActive);
  turn_for(broker.loop, 1'600);
  broker.starve(1, waiting, last);
  CHECK(broker.life(1).expect<message::SessionClose>().message.session == last.id);
  CHECK(broker.stays(1, waiting));
  CHECK(header_of(last.page).session_error == CUDA_ERROR_LAUNCH_TIMEOUT);
  CHECK(header_of(first.page).session_state == kActive);
  REQUIRE(turn_until(broker.loop, [&] { return broker.life(1).killed; }));  // its work runs on
  (void)broker.life(2);
  CHECK(state_in(waiting.page) == kMoved);
  CHECK(last.client->ask<proto::Attached>(proto::Attach{}).lost == CUDA_ERROR_LAUNCH_TIMEOUT);
  CHECK_FALSE(broker.life(0).dead);
}

TEST_CASE("a single executor's kernel runs on, as does one of several while another executor serves") {
  Blocked alone(1, std::chrono::milliseconds(20));
  const Blocked::Member endless = alone.join(0), waiting = alone.join(0);
  alone.spin(0, endless);
  for (int i = 0; i < 2; ++i) {
    alone.starve(0, waiting, endless);
    CHECK(alone.stays(0, waiting));
    turn_for(alone.loop, 30);
  }
  CHECK(header_of(endless.page).session_state == kActive);
}
