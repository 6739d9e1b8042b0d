// SPDX-License-Identifier: Apache-2.0
// mpsctl terminate_client: the client's work ends, it gets its error for good and may be killed; the others go on.
#include <signal.h>

#include <chrono>
#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

const std::string kTerminated = "810 CUDA_ERROR_MPS_CLIENT_TERMINATED";
const std::string kAllTerminated = "sync=810 alloc=810 launch=810 copy=810 stream=810";

Outcome terminate(const BrokerFixture& broker, pid_t server, pid_t client) {
  return broker.ctl({"terminate_client", std::to_string(server), std::to_string(client)});
}

void require_terminated(const BrokerFixture& broker, Client& client) {
  const Outcome outcome = terminate(broker, broker.servers().at(0), client.program().pid());
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
  REQUIRE(outcome.output == "0\n");
}

// Now it is safe to kill it.
void require_killable(const BrokerFixture& broker, Client& client) {
  const pid_t server = broker.servers().at(0);
  client.program().send(SIGKILL);
  REQUIRE(client.program().wait().signal == SIGKILL);
  REQUIRE(eventually(std::chrono::seconds(10), [&] {
    for (const pid_t pid : broker.clients()) {
      if (pid == client.program().pid()) return false;
    }
    return true;
  }));
  REQUIRE(broker.servers().at(0) == server);
}

void require_goes_on(Client& bystander, const BrokerFixture& broker) {
  INFO(broker.log());
  REQUIRE(bystander.ask("check") == "ok");
  REQUIRE(bystander.ask("use") == "ok");
  REQUIRE(bystander.ask("storm 100").rfind("ok ", 0) == 0);
}

}  // namespace

TEST_CASE("an idle client that is terminated has its error, nobody else notices") {
  const BrokerFixture broker;
  Client bystander(broker), target(broker);
  REQUIRE(bystander.ask("hold") == "ok");
  REQUIRE(target.ask("own") == "ok");
  const pid_t server = broker.servers().at(0);
  bystander.begin("storm 500");
  require_terminated(broker, target);
  REQUIRE(target.ask("probe") == kAllTerminated);
  REQUIRE(target.ask("probe") == kAllTerminated);
  REQUIRE(broker.log().find("is INACTIVE: it is terminated by a command") != std::string::npos);
  require_killable(broker, target);
  REQUIRE(bystander.answer().rfind("ok ", 0) == 0);
  require_goes_on(bystander, broker);
  REQUIRE(broker.servers().at(0) == server);
}

TEST_CASE("a client whose work ends within the grace costs no executor") {
  BrokerOptions options;
  options.arguments = {"--orphan-ms", "20000"};
  const BrokerFixture broker(options);
  Client bystander(broker), target(broker);
  REQUIRE(bystander.ask("hold") == "ok");
  const pid_t server = broker.servers().at(0);
  target.begin("storm 60000");
  REQUIRE(bystander.ask("storm 200").rfind("ok ", 0) == 0);  // by then the target's is under way
  require_terminated(broker, target);
  REQUIRE(target.answer().rfind(kTerminated, 0) == 0);
  require_killable(broker, target);
  require_goes_on(bystander, broker);
  REQUIRE(broker.servers().at(0) == server);
}

TEST_CASE("a kernel that never ends is stopped, and the call that waits for it returns") {
  const BrokerFixture broker;
  Client bystander(broker), target(broker);
  REQUIRE(bystander.ask("hold") == "ok");
  const pid_t server = broker.servers().at(0);
  REQUIRE(target.ask("spin") == "ok");
  target.begin("probe");  // its first call waits
  require_terminated(broker, target);
  REQUIRE(target.answer() == kAllTerminated);
  REQUIRE(eventually(std::chrono::seconds(10), [&] { return broker.servers().size() == 1; }));
  INFO(broker.log());
  REQUIRE(broker.servers().at(0) != server);
  require_killable(broker, target);
  require_goes_on(bystander, broker);
}

// Others that are busy are waited for as long as --drain-ms says.
TEST_CASE("a busy client beside a terminated one goes on after draining") {
  BrokerOptions options;
  options.arguments = {"--drain-ms", "20000"};
  const BrokerFixture broker(options);
  Client busy(broker), target(broker);
  REQUIRE(target.ask("spin") == "ok");
  busy.begin("storm 1500");
  require_terminated(broker, target);
  const std::string answer = busy.answer();
  INFO(answer << "\n" << busy.program().errors() << broker.log());
  REQUIRE(answer.rfind("ok ", 0) == 0);
  REQUIRE(target.ask("probe") == kAllTerminated);
}

TEST_CASE("terminate_client of what is not there is an error in one line") {
  const BrokerFixture broker;
  Client client(broker);
  const pid_t server = broker.servers().at(0);
  for (const auto& [of, pid] : {std::pair<pid_t, pid_t>{1, client.program().pid()}, {server, 1}}) {
    const Outcome outcome = terminate(broker, of, pid);
    INFO(outcome.explain());
    REQUIRE_FALSE(outcome.ok());
    REQUIRE_FALSE(outcome.timed_out);
    REQUIRE(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
    REQUIRE(outcome.errors.find("pid 1") != std::string::npos);
  }
  REQUIRE(client.ask("own") == "ok");
}
