// SPDX-License-Identifier: Apache-2.0
// The module cache: an image is loaded once, whoever asks for it and how often; a client's variables begin with what the image says, whatever
// those before it did to them; and all that outlives an executor.
#include <signal.h>

#include <chrono>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// How often an executor has loaded an image for a client, and unloaded one.
std::size_t count_in_log(const BrokerFixture& broker, const char* pattern) {
  const std::string log = broker.log();
  const std::regex wanted(pattern);
  return static_cast<std::size_t>(std::distance(std::sregex_iterator(log.begin(), log.end(), wanted), std::sregex_iterator()));
}
std::size_t loads(const BrokerFixture& broker) { return count_in_log(broker, "image [0-9]+ of [0-9]+ bytes loaded in"); }
std::size_t unloads(const BrokerFixture& broker) { return count_in_log(broker, "Image [0-9]+ of [0-9]+ bytes unloaded"); }

// Before an executor served anybody, because an earlier one had loaded them.
std::size_t loads_again(const BrokerFixture& broker) { return count_in_log(broker, "Image [0-9]+ loaded again"); }

// The next one serves when this returns.
void end_executor(const BrokerFixture& broker) {
  const pid_t executor = broker.servers().front();
  REQUIRE(kill(executor, SIGKILL) == 0);
  REQUIRE(eventually(std::chrono::seconds(10), [&] {
    const auto servers = broker.servers();
    return servers.size() == 1 && servers.front() != executor;
  }));
}

Client start(const BrokerFixture& broker) { return Client(broker, "modules_client"); }

void end(Client client, const BrokerFixture& broker, std::size_t left) {
  client.program().send(SIGKILL);
  (void)client.program().wait();
  REQUIRE(broker.wait_for_clients(left));
}

}  // namespace

TEST_CASE("the second of two identical programs attaches without a module load") {
  const BrokerFixture broker;
  for (int i = 0; i < 3; ++i) {
    const Outcome outcome = broker.run("vector_add_drv", std::vector<std::string>{});
    INFO(outcome.explain() << broker.log());
    REQUIRE(outcome.ok());
    REQUIRE(loads(broker) == 1);
  }
}

TEST_CASE("loading and unloading over and over loads once") {
  const BrokerFixture broker;
  Client first = start(broker), second = start(broker);
  for (int i = 0; i < 5; ++i) {
    REQUIRE(first.ask("plain") == "ok");
    REQUIRE(second.ask("plain") == "ok");
  }
  REQUIRE(first.ask("cycle 300").rfind("ok ", 0) == 0);
  INFO(broker.log());
  REQUIRE(loads(broker) == 1);
  REQUIRE(unloads(broker) == 0);
}

TEST_CASE("what a client sets on a kernel that others use as well changes no answer that they get") {
  const BrokerFixture broker;
  Client modest = start(broker);
  const std::string alone = modest.ask("room 60000");
  REQUIRE(alone == "ok 0 49152");  // more than a block has unless it asks for more
  Client demanding = start(broker), later = start(broker);
  REQUIRE(demanding.ask("limit 64000") == "ok");
  const std::string after = demanding.ask("room 60000");
  INFO(after);
  REQUIRE(after.rfind("ok 0 ", 0) != 0);
  REQUIRE(after.substr(after.rfind(' ')) == " 64000");
  REQUIRE(later.ask("room 60000") == alone);
  REQUIRE(modest.ask("limit 50000") == "ok");
  REQUIRE(modest.ask("room 60000") == "ok 0 50000");
  REQUIRE(demanding.ask("room 61000").rfind("ok 0 ", 0) != 0);  // nobody's limit is lowered by another's
  REQUIRE(loads(broker) == 1);
}

TEST_CASE("a client's variables begin with their initial values, whatever was done to them before") {
  const BrokerFixture broker;
  {
    Client first = start(broker);
    REQUIRE(first.ask("load") == "ok");
    REQUIRE(first.ask("counter") == "ok 5");
    REQUIRE(first.ask("count") == "ok 6");
    REQUIRE(first.ask("count") == "ok 7");
    end(std::move(first), broker, 0);
  }
  Client second = start(broker);
  REQUIRE(second.ask("load") == "ok");
  REQUIRE(second.ask("counter") == "ok 5");
  REQUIRE(second.ask("count") == "ok 6");
  REQUIRE(second.ask("set 40") == "ok");
  REQUIRE(second.ask("count") == "ok 41");
  INFO(broker.log());
  REQUIRE(loads(broker) == 1);
  // Its own next load is a new module as well.
  REQUIRE(second.ask("unload") == "ok");
  REQUIRE(second.ask("load") == "ok");
  REQUIRE(second.ask("count") == "ok 6");
}

TEST_CASE("clients that run at the same time have their variables to themselves") {
  const BrokerFixture broker;
  Client first = start(broker), second = start(broker);
  REQUIRE(first.ask("load") == "ok");
  REQUIRE(second.ask("load") == "ok");
  REQUIRE(first.ask("count") == "ok 6");
  REQUIRE(first.ask("count") == "ok 7");
  REQUIRE(second.ask("count") == "ok 6");
  REQUIRE(first.ask("set 90") == "ok");
  REQUIRE(second.ask("count") == "ok 7");
  REQUIRE(first.ask("count") == "ok 91");
  REQUIRE(loads(broker) == 2);
}

TEST_CASE("images that nobody uses go when the cache is full") {
  const BrokerFixture broker(BrokerOptions{.arguments = {"--module-cache", "0"}});
  Client client = start(broker);
  REQUIRE(client.ask("plain") == "ok");
  REQUIRE(client.ask("load") == "ok");
  REQUIRE(client.ask("count") == "ok 6");
  end(std::move(client), broker, 0);
  Client later = start(broker);
  REQUIRE(later.ask("plain") == "ok");
  INFO(broker.log());
  REQUIRE(eventually(std::chrono::seconds(10), [&] { return unloads(broker) >= 1; }));
  REQUIRE(later.ask("load") == "ok");
  REQUIRE(later.ask("count") == "ok 6");
}

TEST_CASE("a managed variable outlives the executor, and a client that dies with one leaves nothing") {
  const BrokerFixture broker;
  Client idle = start(broker), other = start(broker);
  for (Client* client : {&idle, &other}) {
    REQUIRE(client->ask("load_managed") == "ok");
    REQUIRE(client->ask("seen") == "ok 5");
    REQUIRE(client->ask("count") == "ok 6");
  }
  REQUIRE(idle.ask("count") == "ok 7");
  REQUIRE(idle.ask("seen") == "ok 7");
  REQUIRE(other.ask("seen") == "ok 6");
  end(std::move(other), broker, 1);
  end_executor(broker);
  INFO(broker.log());
  REQUIRE(idle.ask("seen") == "ok 7");
  REQUIRE(idle.ask("count") == "ok 8");
  REQUIRE(idle.ask("seen") == "ok 8");
  Client later = start(broker);
  REQUIRE(later.ask("load_managed") == "ok");
  REQUIRE(later.ask("count") == "ok 6");
  REQUIRE(idle.ask("count") == "ok 9");
}

TEST_CASE("the next executor loads what its clients have before it serves them, and what others ask for when they do") {
  const BrokerFixture broker;
  Client idle = start(broker);
  REQUIRE(idle.ask("plain") == "ok");
  REQUIRE(idle.ask("hold") == "ok");
  {
    Client first = start(broker), second = start(broker);
    for (Client* client : {&first, &second}) {
      REQUIRE(client->ask("load") == "ok");
      REQUIRE(client->ask("count") == "ok 6");
    }
    end(std::move(first), broker, 2);
    end(std::move(second), broker, 1);
  }
  const std::size_t before = loads(broker);
  end_executor(broker);
  REQUIRE(idle.ask("check") == "ok");
  REQUIRE(idle.ask("plain") == "ok");
  INFO(broker.log());
  REQUIRE(loads(broker) == before);
  REQUIRE(loads_again(broker) == 1);  // the idle client's; nobody has the other ones
  Client first = start(broker), second = start(broker);
  for (Client* client : {&first, &second}) {
    REQUIRE(client->ask("load") == "ok");
    REQUIRE(client->ask("counter") == "ok 5");
    REQUIRE(client->ask("count") == "ok 6");
  }
  REQUIRE(loads(broker) == before + 2);
}

TEST_CASE("after a crowd has gone the next executor is ready at once") {
  const BrokerFixture broker;
  Client idle = start(broker);
  REQUIRE(idle.ask("hold") == "ok");
  for (int i = 0; i < 3; ++i) {
    std::vector<Client> crowd;
    for (int client = 0; client < 4; ++client) crowd.push_back(start(broker));
    for (Client& client : crowd) {
      REQUIRE(client.ask("load") == "ok");
      REQUIRE(client.ask("plain") == "ok");
      REQUIRE(client.ask("count") == "ok 6");
    }
    while (!crowd.empty()) {
      end(std::move(crowd.back()), broker, crowd.size());
      crowd.pop_back();
    }
  }
  REQUIRE(loads(broker) == 5);
  end_executor(broker);
  REQUIRE(idle.ask("check") == "ok");
  INFO(broker.log());
  REQUIRE(loads_again(broker) == 0);
}

// Its variables have to lie where they lay, so what was loaded before them comes first; what came later does not.
TEST_CASE("for a client's variables what was loaded before them is loaded again, what came after them is not") {
  const BrokerFixture broker;
  Client before = start(broker), idle = start(broker), after = start(broker);
  for (Client* client : {&before, &idle, &after}) {
    REQUIRE(client->ask("load") == "ok");
    REQUIRE(client->ask("count") == "ok 6");
  }
  end(std::move(before), broker, 2);
  end(std::move(after), broker, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // its variables are kept once it rests
  end_executor(broker);
  INFO(broker.log());
  REQUIRE(idle.ask("count") == "ok 7");
  REQUIRE(loads_again(broker) == 2);
}
