// SPDX-License-Identifier: Apache-2.0
// Clients' priority by the manual's rules: a default, and what a client asks for itself, which goes above it either way. Which priorities streams
// have in the driver is in tests/wire/client_priorities.cpp; here is what is set and told, and on a GPU what comes of it.
#include <algorithm>
#include <map>
#include <string>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr const char* kVariable = "CUDA_MPS_CLIENT_PRIORITY";

Client start(const BrokerFixture& broker, const std::map<std::string, std::string>& environment = {}) {
  ProgramOptions options;
  options.converses = true;
  options.environment = environment;
  return {broker.start("share_client", options), Client::Attached::waits};
}

std::string of_default(const BrokerFixture& broker) { return broker.ctl({"get_default_client_priority"}).output; }

}  // namespace

TEST_CASE("the broker's environment is the default, a command changes it, and it stays over a restart") {
  BrokerOptions options;
  options.environment = {{kVariable, "1"}};
  const BrokerFixture broker(options);
  CHECK(of_default(broker) == "1\n");
  Client below = start(broker);
  REQUIRE(broker.ctl({"set_default_client_priority", "0"}).ok());
  CHECK(of_default(broker) == "0\n");
  Client normal = start(broker);
  Client asks = start(broker, {{kVariable, "1"}});
  for (Client* client : {&below, &normal, &asks}) {
    for (const char* kind : {"null", "blocking", "urgent", "chain", "graph", "green"}) {
      INFO(kind);
      CHECK(client->ask(std::string("where ") + kind, std::chrono::seconds(60)).starts_with("ok 0 "));
    }
    CHECK(client->program().errors().empty());
  }
  REQUIRE(broker.ctl({"set_default_client_priority", "1"}).ok());
  REQUIRE(broker.ctl({"restart"}).ok());
  CHECK(of_default(broker) == "1\n");
  for (Client* client : {&below, &normal, &asks}) CHECK(client->ask("where chain").starts_with("ok 0 "));
}

TEST_CASE("what is wrong in the variable of a priority is told, and left out") {
  BrokerOptions options;
  options.environment = {{kVariable, "4"}};
  const BrokerFixture broker(options);
  CHECK(broker.log().find("CUDA_MPS_CLIENT_PRIORITY: \"4\" is no priority (0: normal, to 1)") != std::string::npos);
  CHECK(of_default(broker) == "0\n");
  for (const char* wrong : {"4", "-1", "low"}) {
    INFO(wrong);
    Client client = start(broker, {{kVariable, wrong}});
    const std::string errors = client.program().errors();
    std::string told = kVariable;
    told.append(": \"").append(wrong).append("\" is no priority");
    CHECK(errors.find(told) != std::string::npos);
    CHECK(std::ranges::count(errors, '\n') == 1);
  }
}

TEST_CASE("with more priorities of clients each is set and told, and without them the lowest that there is is had") {
  {
    BrokerOptions options;
    options.arguments = {"--client-priorities", "4"};
    options.environment = {{kVariable, "3"}};
    const BrokerFixture broker(options);
    CHECK(of_default(broker) == "3\n");
    Client third = start(broker);
    Client second = start(broker, {{kVariable, "2"}});
    Client normal = start(broker, {{kVariable, "0"}});
    REQUIRE(broker.ctl({"client", "set", std::to_string(normal.program().pid()), "--client-priority", "1"}).ok());
    for (Client* client : {&third, &second, &normal}) {
      for (const char* kind : {"null", "urgent", "chain", "graph"}) CHECK(client->ask(std::string("where ") + kind).starts_with("ok 0 "));
      CHECK(client->program().errors().empty());
    }
    REQUIRE(broker.ctl({"restart"}).ok());
    CHECK(of_default(broker) == "3\n");
    CHECK(broker.ctl({"client", "get", std::to_string(second.program().pid()), "client-priority"}).output == "2\n");
    CHECK(broker.ctl({"client", "get", std::to_string(normal.program().pid()), "client-priority"}).output == "1\n");
  }
  const BrokerFixture broker;
  Client client = start(broker, {{kVariable, "3"}});
  CHECK(client.ask("where chain").starts_with("ok 0 "));
  CHECK(broker.ctl({"client", "get", std::to_string(client.program().pid()), "client-priority"}).output == "1\n");
  CHECK(broker.log().find("asks for priority 3 of clients; there are 0 to 1 (--client-priorities), and it has 1.") != std::string::npos);
  const Outcome refused = broker.ctl({"set_default_client_priority", "2"});
  CHECK(refused.exit_code == 1);
  CHECK(refused.errors == "mpsctl: there are priorities 0 to 1 of clients, and no 2: see mpsbroker --client-priorities\n");
}

TEST_CASE("beside each other a client below normal gets less of a full GPU than a normal one") {
  if (!on_gpu()) MPSSHIM_SKIP("the CPU driver goes by no priorities: needs a GPU");
  const BrokerFixture broker;
  Client below = start(broker, {{kVariable, "1"}});
  Client normal = start(broker);
  (void)normal.ask("work 500");  // clocks
  below.begin("work 3000");
  normal.begin("work 3000");
  const std::string of_below = below.answer();
  const std::string of_normal = normal.answer();
  INFO("below normal: " << of_below << ", normal: " << of_normal);
  REQUIRE(of_below.starts_with("ok "));
  REQUIRE(of_normal.starts_with("ok "));
  CHECK(std::stoul(of_normal.substr(3)) > 2 * std::stoul(of_below.substr(3)));
}
