// SPDX-License-Identifier: Apache-2.0
// One client's illegal access: it alone gets the error, and keeps it. An idle client goes on with everything it holds.
#include <string>
#include <thread>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

const std::string kIllegalAddress = "700 CUDA_ERROR_ILLEGAL_ADDRESS";
const std::string kAllIllegalAddress = "sync=700 alloc=700 launch=700 copy=700 stream=700";

void require_goes_on(Client& bystander, const BrokerFixture& broker) {
  INFO(broker.log());
  REQUIRE(bystander.ask("check") == "ok");
  REQUIRE(bystander.ask("use") == "ok");
  REQUIRE(bystander.ask("storm 100").rfind("ok ", 0) == 0);
}

// Whose work ends in the last milliseconds before a fault is reported counts as busy (docs/recovery.md, "Guilt"); bystanders here are idle.
constexpr std::chrono::milliseconds kIdleFirst{100};

void require_fault(Client& guilty, const BrokerFixture& broker) {
  std::this_thread::sleep_for(kIdleFirst);
  const std::string answer = guilty.ask("fault");
  INFO(answer << "\n" << broker.log());
  REQUIRE(answer.rfind(kIllegalAddress, 0) == 0);
  // Once and for all.
  REQUIRE(guilty.ask("probe") == kAllIllegalAddress);
  REQUIRE(guilty.ask("probe") == kAllIllegalAddress);
}

}  // namespace

TEST_CASE("a bystander that came first goes on after an illegal access") {
  const BrokerFixture broker;
  Client bystander(broker);
  REQUIRE(bystander.ask("hold") == "ok");
  Client guilty(broker);
  REQUIRE(guilty.ask("own") == "ok");
  require_fault(guilty, broker);
  require_goes_on(bystander, broker);
}

TEST_CASE("a bystander that came second goes on after an illegal access") {
  const BrokerFixture broker;
  Client guilty(broker);
  REQUIRE(guilty.ask("own") == "ok");
  Client bystander(broker);
  REQUIRE(bystander.ask("hold") == "ok");
  require_fault(guilty, broker);
  require_goes_on(bystander, broker);
}

TEST_CASE("a bystander goes on after one fault after another") {
  const BrokerFixture broker;
  Client bystander(broker);
  REQUIRE(bystander.ask("hold") == "ok");
  for (int turn = 0; turn < 3; ++turn) {
    Client guilty(broker);
    require_fault(guilty, broker);
    require_goes_on(bystander, broker);
  }
}

TEST_CASE("a bystander that calls nothing between two faults goes on") {
  const BrokerFixture broker;
  Client bystander(broker);
  REQUIRE(bystander.ask("hold") == "ok");
  for (int turn = 0; turn < 2; ++turn) {
    Client guilty(broker);
    require_fault(guilty, broker);
  }
  require_goes_on(bystander, broker);
}

// The first call after the fault is one that the control process answers, or that begins something new.
// A broker for each: after five faults within ten seconds it pauses on purpose (docs/recovery.md, "Death of an executor").
TEST_CASE("whatever a bystander calls first after a fault is right") {
  for (const std::string command : {"pin", "own", "global", "image good_ptx", "image good_fatbin", "storm 50", "hold"}) {
    const BrokerFixture broker;
    Client bystander(broker), guilty(broker);
    require_fault(guilty, broker);
    const std::string answer = bystander.ask(command);
    INFO(command << ": " << answer << "\n" << bystander.program().errors() << broker.log());
    REQUIRE(answer.rfind("ok", 0) == 0);
    REQUIRE(bystander.ask("storm 20").rfind("ok", 0) == 0);
  }
}

// The fault falls into every step of another client's first calls: it goes on, or it is told.
TEST_CASE("a client that starts while another faults goes on or gets an MPS error") {
  for (int turn = 0; turn < 10; ++turn) {
    const BrokerFixture broker;
    Client starting(broker), guilty(broker);
    guilty.begin("fault");
    std::this_thread::sleep_for(std::chrono::milliseconds(turn));
    const std::string answer = starting.ask("storm 50");
    const std::string fault = guilty.answer();
    INFO("turn " << turn << ": " << answer << ", guilty: " << fault << "\n" << starting.program().errors() << broker.log());
    REQUIRE((answer.rfind("ok ", 0) == 0 || is_mps_error(answer)));
    REQUIRE((fault.rfind(kIllegalAddress, 0) == 0 || is_mps_error(fault)));
  }
}

TEST_CASE("after a fault the broker serves new clients, and the guilty one's program again") {
  const BrokerFixture broker;
  {
    Client guilty(broker);
    require_fault(guilty, broker);
  }
  Client again(broker);
  REQUIRE(again.ask("hold") == "ok");
  const Outcome other = broker.run("vector_add_drv", std::vector<std::string>{});
  INFO(other.explain());
  REQUIRE(other.ok());
}

// A busy client that is not shown guilty gets an MPS error or goes on, never the guilty one's error and never wrong data.
TEST_CASE("a busy client beside a fault is never blamed") {
  const BrokerFixture broker;
  Client busy(broker), guilty(broker);
  busy.begin("storm 3000");
  const std::string fault = guilty.ask("fault");
  const std::string answer = busy.answer();
  INFO("guilty: " << fault << "\nbusy: " << answer << "\n" << broker.log());
  REQUIRE((answer.rfind("ok ", 0) == 0 || is_mps_error(answer)));
  // With both busy the broker need not know who it was: but it is an error, at once and for ever.
  REQUIRE((fault.rfind(kIllegalAddress, 0) == 0 || is_mps_error(fault)));
  REQUIRE(guilty.ask("probe").find("=0") == std::string::npos);
  Client newcomer(broker);
  REQUIRE(newcomer.ask("hold") == "ok");
}

// Twenty times what an executor needs to notice that a session is idle and to copy what its variables hold (docs/reliability.md).
void idle_for_a_while() { std::this_thread::sleep_for(std::chrono::seconds(1)); }

TEST_CASE("what kernels wrote into a module's variables is there after other clients' faults") {
  const BrokerFixture broker;
  Client owner(broker), second_owner(broker);
  for (Client* client : {&owner, &second_owner}) REQUIRE(client->ask("global") == "ok");
  REQUIRE(owner.ask("count") == "ok 6");
  REQUIRE(second_owner.ask("count") == "ok 6");
  REQUIRE(second_owner.ask("count") == "ok 7");
  idle_for_a_while();
  for (int turn = 0; turn < 2; ++turn) {  // the first time nobody calls in between
    Client guilty(broker);
    require_fault(guilty, broker);
  }
  // A newcomer has a copy of its own, whoever comes first.
  Client newcomer(broker);
  REQUIRE(newcomer.ask("global") == "ok");
  REQUIRE(newcomer.ask("count") == "ok 6");
  INFO(owner.program().errors() << second_owner.program().errors() << broker.log());
  REQUIRE(second_owner.ask("count") == "ok 8");
  REQUIRE(owner.ask("count") == "ok 7");
  idle_for_a_while();
  Client guilty(broker);
  require_fault(guilty, broker);
  REQUIRE(owner.ask("count") == "ok 8");
  REQUIRE(newcomer.ask("count") == "ok 7");
  REQUIRE(second_owner.ask("count") == "ok 9");
}

TEST_CASE("variables that no kernel has touched yet are there after a fault at once") {
  const BrokerFixture broker;
  Client owner(broker), guilty(broker);
  REQUIRE(owner.ask("global") == "ok");
  require_fault(guilty, broker);
  INFO(owner.program().errors() << broker.log());
  REQUIRE(owner.ask("count") == "ok 6");
}

TEST_CASE("variables that were written just before a fault are right or their owner is told") {
  for (int turn = 0; turn < 4; ++turn) {
    const BrokerFixture broker;
    Client owner(broker), guilty(broker);
    REQUIRE(owner.ask("global") == "ok");
    REQUIRE(owner.ask("count") == "ok 6");
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * turn));
    require_fault(guilty, broker);
    const std::string answer = owner.ask("count");
    INFO(answer << "\n" << owner.program().errors() << broker.log());
    REQUIRE((answer == "ok 7" || is_mps_error(answer)));
  }
}

// More than is kept: what a kernel wrote is gone with the executor. Its owner is told, and never sees the first value again.
TEST_CASE("the owner of large writable variables gets an error after another client's fault, not old data") {
  const BrokerFixture broker;
  Client owner(broker);
  REQUIRE(owner.ask("large_global") == "ok");
  REQUIRE(owner.ask("count") == "ok 6");
  REQUIRE(owner.ask("count") == "ok 7");
  idle_for_a_while();
  Client guilty(broker);
  require_fault(guilty, broker);
  const std::string answer = owner.ask("count");
  INFO(answer << "\n" << owner.program().errors() << broker.log());
  REQUIRE(is_mps_error(answer));
  REQUIRE(owner.program().errors().find("writable variables") != std::string::npos);
  REQUIRE(owner.ask("probe").find("=0") == std::string::npos);
}
