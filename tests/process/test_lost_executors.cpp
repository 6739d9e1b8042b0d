// SPDX-License-Identifier: Apache-2.0
// An executor that is replaced because a dead client's kernel never ends, or that is killed: idle clients go on; a client in the middle of
// its work goes on or gets an MPS error that stays; nobody hangs and nobody reads wrong data.
#include <signal.h>

#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// What a client that was busy when its executor went may say.
void require_right_or_mps_error(Client& busy, const std::string& answer, const BrokerFixture& broker) {
  INFO("busy: " << answer << "\n" << busy.program().errors() << broker.log());
  const bool went_on = answer.rfind("ok ", 0) == 0;
  REQUIRE((went_on || is_mps_error(answer)));
  const std::string after = busy.ask("storm 50");
  INFO("then: " << after);
  REQUIRE((went_on ? after.rfind("ok ", 0) == 0 : is_mps_error(after)));
}

void require_goes_on(Client& idle, const BrokerFixture& broker) {
  INFO(idle.program().errors() << broker.log());
  REQUIRE(idle.ask("check") == "ok");
  REQUIRE(idle.ask("use") == "ok");
}

void require_newcomers_are_served(const BrokerFixture& broker) {
  const Outcome newcomer = broker.run("vector_add_drv", std::vector<std::string>{});
  INFO(newcomer.explain() << broker.log());
  REQUIRE(newcomer.ok());
  REQUIRE(newcomer.took < std::chrono::seconds(10));
}

pid_t executor_of(const BrokerFixture& broker) {
  const std::vector<pid_t> servers = broker.servers();
  REQUIRE(servers.size() == 1);
  return servers.front();
}

// An idle client that calls before that is busy, not idle.
void require_replaced(pid_t executor, const BrokerFixture& broker) {
  const bool replaced = eventually(std::chrono::seconds(10), [&] {
    const std::vector<pid_t> servers = broker.servers();
    return servers.size() == 1 && servers.front() != executor;
  });
  INFO(broker.log());
  REQUIRE(replaced);
}

}  // namespace

TEST_CASE("an idle client goes on after another died with a kernel that never ends") {
  const BrokerFixture broker;
  Client idle(broker);
  REQUIRE(idle.ask("hold") == "ok");
  for (int turn = 0; turn < 2; ++turn) {
    const pid_t executor = executor_of(broker);
    Client victim(broker);
    REQUIRE(victim.ask("spin") == "ok");
    victim.program().send(SIGKILL);
    REQUIRE(victim.program().wait().signal == SIGKILL);
    require_newcomers_are_served(broker);
    require_replaced(executor, broker);
    require_goes_on(idle, broker);
  }
  REQUIRE(broker.wait_for_clients(1));
}

TEST_CASE("a busy client goes on or gets an MPS error after another died with a kernel that never ends") {
  const BrokerFixture broker;
  Client busy(broker), victim(broker);
  REQUIRE(victim.ask("spin") == "ok");
  busy.begin("storm 3000");
  sleep_briefly();
  victim.program().send(SIGKILL);
  REQUIRE(victim.program().wait().signal == SIGKILL);
  require_newcomers_are_served(broker);
  require_right_or_mps_error(busy, busy.answer(), broker);
}

TEST_CASE("idle clients go on after their executor was killed") {
  const BrokerFixture broker;
  Client first(broker), second(broker);
  REQUIRE(first.ask("hold") == "ok");
  REQUIRE(second.ask("hold") == "ok");
  for (int turn = 0; turn < 2; ++turn) {
    const pid_t executor = executor_of(broker);
    REQUIRE(::kill(executor, SIGKILL) == 0);
    require_goes_on(first, broker);
    require_goes_on(second, broker);
    REQUIRE(executor_of(broker) != executor);
  }
  require_newcomers_are_served(broker);
}

TEST_CASE("busy clients go on or get an MPS error after their executor was killed") {
  const BrokerFixture broker;
  Client idle(broker), first(broker), second(broker);
  REQUIRE(idle.ask("hold") == "ok");
  const pid_t executor = executor_of(broker);
  first.begin("storm 1500");
  second.begin("storm 1500");
  for (int i = 0; i < 20; ++i) sleep_briefly();
  REQUIRE(::kill(executor, SIGKILL) == 0);
  require_right_or_mps_error(first, first.answer(), broker);
  require_right_or_mps_error(second, second.answer(), broker);
  require_goes_on(idle, broker);
  require_newcomers_are_served(broker);
}

TEST_CASE("a client whose kernel never ends gets an MPS error when its executor is killed") {
  const BrokerFixture broker;
  Client spinning(broker), idle(broker);
  REQUIRE(idle.ask("hold") == "ok");
  REQUIRE(spinning.ask("spin") == "ok");
  REQUIRE(::kill(executor_of(broker), SIGKILL) == 0);
  const std::string answer = spinning.ask("storm 50");
  INFO(answer << "\n" << broker.log());
  REQUIRE(is_mps_error(answer));
  REQUIRE(spinning.ask("probe").find("=0") == std::string::npos);
  require_goes_on(idle, broker);
}
