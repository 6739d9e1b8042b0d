// SPDX-License-Identifier: Apache-2.0
// Host functions that do not return: they hold up their own stream, nobody else, and not the end of their client or of its executor.
#include <signal.h>

#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

bool goes_on(Client& client) { return client.ask("storm 50").starts_with("ok "); }

}  // namespace

TEST_CASE("a host function that stands holds up its own stream alone") {
  const BrokerFixture broker;
  Client standing(broker), beside(broker);
  for (int turn = 0; turn < 3; ++turn) {
    REQUIRE(standing.ask("stand") == "ok");  // which copies in another stream of its own meanwhile
    INFO(broker.log());
    CHECK(goes_on(beside));
    REQUIRE(standing.ask("release") == "ok");
  }
}

TEST_CASE("a client killed in its host function leaves nothing and takes nobody with it") {
  const BrokerFixture broker;
  Client beside(broker);
  REQUIRE(beside.ask("hold") == "ok");
  const std::vector<pid_t> before = broker.servers();
  Client victim(broker);
  REQUIRE(victim.ask("stand") == "ok");
  victim.program().send(SIGKILL);
  REQUIRE(victim.program().wait().signal == SIGKILL);
  INFO(broker.log());
  REQUIRE(broker.wait_for_clients(1));
  CHECK(beside.ask("check") == "ok");
  CHECK(beside.ask("use") == "ok");
  CHECK(broker.servers() == before);
}

TEST_CASE("a client whose executor ends while its host function stands is told so") {
  const BrokerFixture broker;
  Client standing(broker), idle(broker);
  REQUIRE(idle.ask("hold") == "ok");
  REQUIRE(standing.ask("stand") == "ok");
  REQUIRE(broker.servers().size() == 1);
  REQUIRE(kill(broker.servers().front(), SIGKILL) == 0);
  INFO(broker.log());
  const std::string answer = standing.ask("release");
  INFO(answer);
  CHECK(is_mps_error(answer));
  CHECK(idle.ask("use") == "ok");
}
