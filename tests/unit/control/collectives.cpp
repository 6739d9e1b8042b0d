// SPDX-License-Identifier: Apache-2.0
// Groups of sessions on several devices that reach each other's memory come to executors of their own.
#include "tests/unit/control/support/two_devices.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

// Two programs on both devices, in the first executor of each.
struct Programs : TwoDevices {
  Programs() : TwoDevices(true, ControlFixture::limits_with(2)) {}
  proto::Attached first[2], second[2];
  std::vector<TestClient> clients;

  void begin() {
    for (proto::Attached* program : {first, second}) {
      for (unsigned device : {0u, 1u}) clients.push_back(attach_on(device, program[device]));
    }
  }
  // Of the program: its session on device 1 reaches what the one on device 0 has.
  void link(int program) {
    proto::PeerLease request;
    request.address = (program == 0 ? first : second)[0].device_lease.address;
    REQUIRE(clients.at(program == 0 ? 1 : 3).ask<proto::PeerLeased>(request).header.status == CUDA_SUCCESS);
    (void)of(1).expect<message::LeaseAdd>();
  }
  // On both devices.
  void begin_linked() {
    begin();
    link(0);
    link(1);
  }
  // In the executor that is started for it.
  void move(const proto::Attached& session, unsigned device, std::size_t life, int client) {
    REQUIRE(turn_until(loop, [&] { return launcher.lives.size() == life + 1; }));
    ExecutorPeer& next = *launcher.lives.at(life);
    CHECK(next.options.label == std::to_string(device) + ".1");
    next.ready(CUDA_SUCCESS, 141ull << 30);
    const auto order = of(device).expect<message::SessionPause>().message;
    CHECK(order.session == session.session);
    of(device).send(message::SessionPaused{.session = order.session, .order = order.order, .flags = order.flags});
    (void)of(device).expect<message::SessionClose>();
    proto::Attach again;
    again.device = device;
    clients.at(client).send(again);
    if (device == 1) (void)next.expect<message::LeaseRestore>();
    next.open_session();
    REQUIRE(clients.at(client).await<proto::Attached>().header.status == CUDA_SUCCESS);
  }
};

}  // namespace

TEST_CASE("collectives: a program on two devices stays where it is beside others that are on each alone") {
  Programs broker;
  broker.begin();
  broker.link(0);
  turn_for(broker.loop, 100);
  CHECK(broker.launcher.lives.size() == 2);
}

TEST_CASE("collectives: of two programs on two devices the later one moves on both, a session after the other") {
  Programs broker;
  broker.begin_linked();
  broker.move(broker.second[0], 0, 2, 2);
  broker.move(broker.second[1], 1, 3, 3);
  turn_for(broker.loop, 100);
  CHECK(broker.launcher.lives.size() == 4);
  CHECK_FALSE(broker.of(0).receive());
  CHECK_FALSE(broker.of(1).receive());
}

TEST_CASE("collectives: who does not come to rest is asked again") {
  Programs broker;
  broker.begin_linked();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  broker.launcher.lives.at(2)->ready(CUDA_SUCCESS, 141ull << 30);
  (void)broker.of(0).expect<message::SessionPause>();
  (void)broker.of(0).expect<message::Stay>();  // no answer within the limit
  CHECK(broker.of(0).expect<message::SessionPause>().message.session == broker.second[0].session);
}

TEST_CASE("collectives: who never comes to rest is asked ever more rarely, since it stands still meanwhile") {
  Programs broker;
  broker.begin_linked();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  broker.launcher.lives.at(2)->ready(CUDA_SUCCESS, 141ull << 30);
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 4; }));  // the other one's turn
  broker.launcher.lives.at(3)->ready(CUDA_SUCCESS, 141ull << 30);
  turn_for(broker.loop, 1'000);
  std::size_t asked[2] = {};
  for (unsigned device : {0u, 1u}) {
    while (const auto received = broker.of(device).receive()) asked[device] += received->is<message::SessionPause>() ? 1 : 0;
    CHECK(asked[device] >= 1);
  }
  CHECK(asked[0] + asked[1] >= 3);
  CHECK(asked[0] + asked[1] <= 8);  // each stands still for 60 ms
}
