// SPDX-License-Identifier: Apache-2.0
// mpsctl restart: new executors, and the installed mpsbroker in place of the running one, under clients that notice a short wait.
#include <signal.h>

#include <chrono>
#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

pid_t executor_of(const BrokerFixture& broker) {
  const std::vector<pid_t> servers = broker.servers();
  INFO(broker.log());
  REQUIRE(servers.size() == 1);
  return servers.front();
}

void require_ok(Client& client, const std::string& command, const BrokerFixture& broker) {
  const std::string answer = client.ask(command);
  INFO(command << ": " << answer << "\n" << client.program().errors() << broker.log());
  REQUIRE(answer.rfind("ok", 0) == 0);
}

void require_done(const Outcome& outcome, const BrokerFixture& broker) {
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
}

void require_newcomers_are_served(const BrokerFixture& broker) {
  const Outcome newcomer = broker.run("vector_add_drv", std::vector<std::string>{});
  INFO(newcomer.explain() << broker.log());
  REQUIRE(newcomer.ok());
}

}  // namespace

TEST_CASE("restart executors: idle and busy clients go on in new ones") {
  const BrokerFixture broker;
  Client idle(broker), busy(broker);
  require_ok(idle, "hold", broker);
  for (int turn = 0; turn < 3; ++turn) {
    const pid_t before = executor_of(broker);
    busy.begin("storm 1500");
    for (int i = 0; i < 10; ++i) sleep_briefly();
    require_done(broker.ctl({"restart", "executors"}), broker);
    REQUIRE(executor_of(broker) != before);
    require_ok(idle, "check", broker);
    require_ok(idle, "use", broker);
    const std::string answer = busy.answer();
    INFO(answer << busy.program().errors() << broker.log());
    REQUIRE(answer.rfind("ok ", 0) == 0);
  }
  require_newcomers_are_served(broker);
}

TEST_CASE("who does not come to rest stands in the way of a restart, unless forced") {
  const BrokerFixture broker;
  Client spinning(broker), idle(broker);
  require_ok(idle, "hold", broker);
  require_ok(spinning, "spin", broker);
  const pid_t before = executor_of(broker);
  const Outcome refused = broker.ctl({"restart", "-t", "1", "executors"});
  INFO(refused.explain() << broker.log());
  REQUIRE(refused.exit_code == 1);
  REQUIRE(refused.errors.find("nothing was changed: Session 1") != std::string::npos);
  REQUIRE(executor_of(broker) == before);
  require_ok(idle, "use", broker);
  require_newcomers_are_served(broker);
  require_done(broker.ctl({"restart", "-f", "-t", "1", "executors"}), broker);
  require_ok(idle, "check", broker);
  REQUIRE(is_mps_error(spinning.ask("storm 50")));
}
