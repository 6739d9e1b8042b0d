// SPDX-License-Identifier: Apache-2.0
// Groups with an executor of their own: a member's fault ends who is at work in the group, and nobody else.
#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/process/share.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr std::chrono::seconds kLimit{60};

Client start(const BrokerFixture& broker, const std::string& program, const std::string& group) {
  return start_with(broker, program, {{"MPSSHIM_GROUP", group}});
}

// Number of the server that serves it.
std::string server_of(const BrokerFixture& broker, Client& client) {
  const Outcome outcome = broker.ctl({"client", "get", std::to_string(client.program().pid()), "server"});
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  return outcome.output;
}

void require_right(Client& client) {
  const std::string answer = client.ask("report", kLimit);  // compares every word
  INFO(answer);
  CHECK(answer.starts_with("ok "));
}

}  // namespace

TEST_CASE("a member's fault ends a busy member, and leaves busy outsiders at work") {
  const BrokerFixture broker;
  REQUIRE(broker.ctl({"namespace", "create", "apart", "--own-executor"}).ok());
  Client outsider = start(broker, "pacing_client", ""), of_another = start(broker, "pacing_client", "plain");
  Client member = start(broker, "pacing_client", "apart"), idle = start(broker, "memory_client", "apart");
  REQUIRE(idle.ask("hold") == "ok");
  REQUIRE(idle.ask("launch") == "ok");
  Client guilty = start(broker, "test_client", "apart");
  CHECK(server_of(broker, outsider) == server_of(broker, of_another));
  CHECK(server_of(broker, outsider) != server_of(broker, member));
  CHECK(server_of(broker, member) == server_of(broker, guilty));
  const std::vector<pid_t> before = broker.servers();
  REQUIRE(before.size() == 2);

  Client endless = start(broker, "share_client", "apart");  // a member that is at work when the fault comes, surely
  REQUIRE(endless.ask("spin") == "ok");
  outsider.begin("work 3000");
  of_another.begin("work 3000");
  const std::string fault = guilty.ask("fault");
  INFO(fault << '\n' << broker.log());
  REQUIRE((fault.starts_with("700 CUDA_ERROR_ILLEGAL_ADDRESS") || fault.starts_with("807 ")));  // two were at work: whose doing it is may not be seen
  CHECK(endless.ask("count").starts_with("ok "));
  CHECK(endless.ask("where null").find("CUDA_ERROR_MPS_SERVER_NOT_READY") != std::string::npos);
  CHECK(outsider.answer(kLimit) == "ok");
  CHECK(of_another.answer(kLimit) == "ok");
  require_right(outsider);
  require_right(of_another);
  CHECK(broker.servers().at(0) == before.at(0));
  REQUIRE(eventually(kLimit, [&] { return broker.servers().size() == 2 && broker.servers().at(1) != before.at(1); }));
  CHECK(idle.ask("check", kLimit) == "ok");  // who was idle goes on, in the group's next executor
  CHECK(server_of(broker, idle) != server_of(broker, outsider));
}

TEST_CASE("a group keeps its own executor over its executor's death and a restart of the broker") {
  const BrokerFixture broker;
  REQUIRE(broker.ctl({"namespace", "create", "apart", "--own-executor"}).ok());
  Client member = start(broker, "memory_client", "apart"), outsider = start(broker, "memory_client", "");
  for (Client* client : {&member, &outsider}) {
    REQUIRE(client->ask("hold") == "ok");
    REQUIRE(client->ask("launch") == "ok");
  }
  const auto require_apart = [&] {
    CHECK(member.ask("check", kLimit) == "ok");
    CHECK(outsider.ask("check", kLimit) == "ok");
    CHECK(server_of(broker, member) != server_of(broker, outsider));
  };
  require_apart();
  for (const pid_t server : broker.servers()) REQUIRE(::kill(server, SIGKILL) == 0);
  require_apart();
  const Outcome outcome = broker.ctl({"restart"});
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  require_apart();
  CHECK(broker.ctl({"namespace", "list", "--csv"}).output.find(",1,\n") != std::string::npos);
}

TEST_CASE("a group whose own executor cannot be had is not served, and is told") {
  BrokerOptions options;
  options.arguments = {"--executors", "1"};
  const BrokerFixture broker(options);
  REQUIRE(broker.ctl({"namespace", "create", "apart", "--own-executor"}).ok());
  ProgramOptions member;
  member.environment = {{"MPSSHIM_GROUP", "apart"}};
  const Outcome outcome = broker.run("process1", member);
  INFO(outcome.explain());
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.errors.find("The broker takes no new client now (CUresult 807)") != std::string::npos);
  CHECK(broker.log().find("its group apart is to have an executor of its own, and no further one can be had") != std::string::npos);
  CHECK(broker.run("process1").exit_code == 0);
}
