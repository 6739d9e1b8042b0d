// SPDX-License-Identifier: Apache-2.0
// Clients with green contexts: they come back in the next executor, or their client is told; those of clients that are gone are gone.
#include <signal.h>

#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr const char* kProgram = "green_client";

pid_t executor_of(const BrokerFixture& broker) {
  const std::vector<pid_t> servers = broker.servers();
  REQUIRE(servers.size() == 1);
  return servers.front();
}

void kill_executor(const BrokerFixture& broker) {
  const pid_t executor = executor_of(broker);
  REQUIRE(kill(executor, SIGKILL) == 0);
  const bool replaced = eventually(std::chrono::seconds(10), [&] {
    const std::vector<pid_t> servers = broker.servers();
    return servers.size() == 1 && servers.front() != executor;
  });
  INFO(broker.log());
  REQUIRE(replaced);
}

void require_ok(Client& client, const std::string& command, const BrokerFixture& broker) {
  const std::string answer = client.ask(command);
  INFO(command << ": " << answer << "\n" << client.program().errors() << broker.log());
  REQUIRE(answer == "ok");
}

}  // namespace

TEST_CASE("green contexts, their streams, resources and descriptors go on in the next executor") {
  const BrokerFixture broker;
  Client client(broker, kProgram);
  Client other(broker, kProgram);
  require_ok(client, "hold", broker);
  require_ok(other, "hold", broker);
  for (int turn = 0; turn < 2; ++turn) {
    kill_executor(broker);
    for (const char* command : {"check", "use", "again", "check"}) require_ok(client, command, broker);
    require_ok(other, "use", broker);
  }
}

TEST_CASE("a green context of one that is gone is served until its executor goes") {
  const BrokerFixture broker;
  Client client(broker, kProgram);
  require_ok(client, "hold", broker);
  require_ok(client, "end_outer", broker);
  for (const char* command : {"check", "use", "again"}) require_ok(client, command, broker);
  kill_executor(broker);
  const std::string answer = client.ask("use");
  INFO(answer << "\n" << client.program().errors());
  REQUIRE(is_mps_error(answer));
  REQUIRE(is_mps_error(client.ask("use")));
  Client newcomer(broker, kProgram);
  require_ok(newcomer, "hold", broker);
}

TEST_CASE("a client ends with work in a green context while others go on with theirs") {
  const BrokerFixture broker;
  Client idle(broker, kProgram);
  require_ok(idle, "hold", broker);
  for (int turn = 0; turn < 2; ++turn) {
    Client victim(broker, kProgram);
    require_ok(victim, "hold", broker);
    require_ok(victim, "spin", broker);
    victim.program().send(SIGKILL);
    REQUIRE(victim.program().wait().signal == SIGKILL);
    for (const char* command : {"check", "use", "again"}) require_ok(idle, command, broker);
  }
}

TEST_CASE("green contexts of clients that were killed make room for others") {
  const BrokerFixture broker;
  std::vector<Client> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(broker, kProgram);
    require_ok(clients.back(), "hold", broker);
    require_ok(clients.back(), "more 13", broker);  // sixteen
    REQUIRE(clients.back().ask("more 1") == "0 made, then 2 CUDA_ERROR_OUT_OF_MEMORY");
  }
  {
    Client too_many(broker, kProgram);  // all have 128
    const std::string answer = too_many.ask("hold");
    INFO(answer);
    REQUIRE(answer.find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  }
  for (Client& client : clients) client.program().send(SIGKILL);
  clients.clear();
  REQUIRE(broker.wait_for_clients(0));
  const bool has_room = eventually(std::chrono::seconds(20), [&] {
    Client next(broker, kProgram);
    return next.ask("hold") == "ok" && next.ask("more 13") == "ok" && next.ask("use") == "ok";
  });
  INFO(broker.log());
  REQUIRE(has_room);
}
