// SPDX-License-Identifier: Apache-2.0
// All are brought to rest, beside what else executors are at.
#include "tests/unit/control/support/starving_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

TEST_CASE("a restart asks an executor that comes while it prepares for a next life as well") {
  Starving broker;
  const auto next_of = [&](std::size_t number) -> ExecutorPeer& {
    REQUIRE(turn_until(broker.loop, [&] {
      CHECK_FALSE(broker.manager.restarts().prepare_next_lives());
      return broker.launcher.lives.size() == number;
    }));
    CHECK(broker.launcher.last().options.standby);
    return broker.launcher.last();
  };
  ExecutorPeer& of_first = next_of(2);
  broker.starve();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  ExecutorPeer& further = broker.launcher.last();
  CHECK_FALSE(further.options.standby);
  CHECK_FALSE(broker.manager.restarts().prepare_next_lives());
  of_first.ready();
  further.ready();
  next_of(4).ready();
  CHECK(turn_until(broker.loop, [&] { return broker.manager.restarts().prepare_next_lives(); }));
}

TEST_CASE("a rest that crosses the word that all go on is no move") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  const proto::Mapping page = map_header(client.fds);
  ExecutorPeer& executor = *broker.launcher.lives.at(0);
  std::vector<std::string> ends;
  const auto rest = [&](std::chrono::milliseconds patience) {
    broker.manager.restarts().bring_to_rest({.patience = patience}, [&](const std::string& why) { ends.push_back(why); });
    return executor.expect<message::SessionPause>().message;
  };
  const auto answer = [&](const message::SessionPause& order) {
    executor.send(message::SessionPaused{.session = order.session, .order = order.order, .flags = order.flags});
    turn_for(broker.loop, 20);
  };
  const message::SessionPause first = rest(std::chrono::milliseconds(20));
  executor.expect<message::Stay>();
  REQUIRE(ends.size() == 1);
  CHECK(ends[0] != "");
  answer(first);
  CHECK(header_of(page).session_state == kActive);
  CHECK_FALSE(executor.receive());
  const message::SessionPause second = rest(std::chrono::milliseconds(2'000));
  answer(first);
  CHECK(ends.size() == 1);
  answer(second);
  CHECK(ends == std::vector<std::string>{ends[0], ""});
}
