// SPDX-License-Identifier: Apache-2.0
// Clients whose managed memory migrates, beside each other: each is right whatever becomes of others and of executors, and nothing of the dead stays.
#include <signal.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr std::chrono::seconds kLimit{60};

ProgramOptions migrating(const char* mode = "device") {
  ProgramOptions options;
  options.converses = true;
  options.environment["MPSSHIM_MANAGED"] = mode;
  return options;
}

Client start(const BrokerFixture& broker, const ProgramOptions& options = migrating()) {
  return Client(broker.start("managed_client", options), Client::Attached::waits);
}

void require_ok(Client& client, const std::string& command, const BrokerFixture& broker) {
  const std::string answer = client.ask(command, kLimit);
  INFO(command << ": " << answer << "\n" << client.program().errors() << "--- broker\n" << broker.log());
  REQUIRE(answer.starts_with("ok"));
}

long free_mib(Client& client) {
  const std::string answer = client.ask("free");
  REQUIRE(answer.starts_with("ok "));
  return std::stol(answer.substr(3));
}

// Once all work has ended.
void replace_executor(const BrokerFixture& broker, bool by_restart) {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::vector<pid_t> servers = broker.servers();
  REQUIRE(servers.size() == 1);
  if (by_restart) {
    REQUIRE(broker.ctl({"restart", "executors"}).ok());
  } else {
    kill(servers.front(), SIGKILL);
  }
  REQUIRE(eventually(kLimit, [&] {
    const std::vector<pid_t> now = broker.servers();
    return now.size() == 1 && now.front() != servers.front();
  }));
}

// The victim is killed in the middle of what it has begun; the bystander goes on with what it has.
void kill_beside(Client& victim, Client& bystander, std::chrono::microseconds after, const BrokerFixture& broker) {
  std::this_thread::sleep_for(after);
  victim.program().send(SIGKILL);
  (void)victim.program().wait();
  const std::string answer = bystander.answer(kLimit);
  INFO(answer << "\n" << bystander.program().errors() << broker.log());
  REQUIRE(answer.starts_with("ok "));
}

}  // namespace

TEST_CASE("several clients with managed memory that migrates are right at once") {
  const BrokerFixture broker;
  std::vector<Client> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(start(broker));
  for (Client& client : clients) require_ok(client, "hold 2048", broker);
  for (Client& client : clients) client.begin("alternate 2000");
  for (Client& client : clients) {
    const std::string answer = client.answer(kLimit);
    INFO(answer << "\n" << client.program().errors() << broker.log());
    CHECK(answer.starts_with("ok "));
  }
  for (Client& client : clients) require_ok(client, "check", broker);
}

TEST_CASE("clients that are killed while their managed memory is on its way are no loss to others, and all of it is back") {
  BrokerOptions options;
  options.arguments = {"--orphan-ms", "20000"};
  const BrokerFixture broker(options);
  Client watch(broker, "memory_client");
  Client bystander = start(broker);
  require_ok(bystander, "hold 1024", broker);
  require_ok(watch, "hold", broker);
  const long before = free_mib(watch);
  std::mt19937 random(20261126);
  for (int turn = 0; turn < 15; ++turn) {
    Client victim = start(broker);
    if (turn % 4 == 0) {
      victim.begin("hold 4096");
    } else {
      require_ok(victim, "hold 4096", broker);
      victim.begin("alternate 60000");
    }
    bystander.begin("alternate 200");
    INFO("turn " << turn);
    kill_beside(victim, bystander, std::chrono::microseconds(random() % 60'000), broker);
  }
  require_ok(bystander, "check", broker);
  REQUIRE(broker.wait_for_clients(2));
  CHECK(eventually(std::chrono::seconds(20), [&] { return free_mib(watch) >= before - 4; }));
}

TEST_CASE("what migrates outlives executors, whichever side had it") {
  const BrokerFixture broker;
  Client by_host = start(broker), by_device = start(broker);
  for (Client* client : {&by_host, &by_device}) require_ok(*client, "hold 1024", broker);
  for (int turn = 0; turn < 3; ++turn) {
    require_ok(by_device, "launch", broker);
    require_ok(by_host, "launch", broker);
    require_ok(by_host, "check", broker);  // brought back to the host
    // The device's work has ended, and nobody has looked.
    replace_executor(broker, turn == 1);
    require_ok(by_device, "check", broker);
    require_ok(by_host, "check", broker);
  }
}

TEST_CASE("managed memory that lives on the host by advice outlives executors, and changes its place in the next one") {
  const BrokerFixture broker;
  Client stays = start(broker), leaves = start(broker);
  for (Client* client : {&stays, &leaves}) {
    require_ok(*client, "hold 1024", broker);
    require_ok(*client, "launch", broker);
    require_ok(*client, "prefer 1", broker);
    require_ok(*client, "launch", broker);
    require_ok(*client, "check", broker);
  }
  for (int turn = 0; turn < 3; ++turn) {
    replace_executor(broker, turn == 1);
    require_ok(leaves, turn % 2 == 0 ? "prefer 0" : "prefer 1", broker);
    for (Client* client : {&stays, &leaves}) {
      require_ok(*client, "check", broker);
      require_ok(*client, "launch", broker);
      require_ok(*client, "check", broker);
      require_ok(*client, "alternate 200", broker);
    }
  }
}

TEST_CASE("clients that are killed while their managed memory changes its place are no loss to others, and all of it is back") {
  BrokerOptions options;
  options.arguments = {"--orphan-ms", "20000"};
  const BrokerFixture broker(options);
  Client watch(broker, "memory_client");
  Client bystander = start(broker);
  require_ok(bystander, "hold 1024", broker);
  require_ok(bystander, "prefer 1", broker);
  require_ok(watch, "hold", broker);
  const long before = free_mib(watch);
  std::mt19937 random(20261129);
  for (int turn = 0; turn < 20; ++turn) {
    Client victim = start(broker);
    require_ok(victim, "hold 8192", broker);
    if (turn % 2 == 1) require_ok(victim, "prefer 1", broker);
    if (turn % 5 == 4) require_ok(victim, "launch", broker);
    bystander.begin("alternate 50");
    victim.begin(turn % 2 == 1 ? "prefer 0" : "prefer 1");
    INFO("turn " << turn);
    kill_beside(victim, bystander, std::chrono::microseconds(random() % 8'000), broker);
  }
  require_ok(bystander, "check", broker);
  REQUIRE(broker.wait_for_clients(2));
  CHECK(eventually(std::chrono::seconds(20), [&] { return free_mib(watch) >= before - 4; }));
}

TEST_CASE("managed memory that migrates counts as the device's in limits, and stays on the host where it is asked to when there is no room") {
  const BrokerFixture broker;
  ProgramOptions options = migrating();
  options.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=64M";
  Client strict = start(broker, options);
  CHECK(strict.ask("take 40") == "ok");
  CHECK(strict.ask("take 40") == "2 CUDA_ERROR_OUT_OF_MEMORY");
  options.environment["MPSSHIM_MANAGED"] = "auto";
  Client lenient = start(broker, options);
  CHECK(lenient.ask("take 40") == "ok");
  CHECK(lenient.ask("take 40") == "ok");
  CHECK(lenient.ask("take 200") == "ok");
}

// What migrates counts as the device's memory, what stays on the host does not.
TEST_CASE("where nothing is asked for managed memory is as with auto, but on the host where a process's devices do not reach each other") {
  if (on_gpu()) MPSSHIM_SKIP("others take and give back memory of a GPU meanwhile");
  const auto taken_mib = [](const BrokerFixture& broker, const char* mode) {
    ProgramOptions options = migrating();
    options.environment.erase("MPSSHIM_MANAGED");
    if (mode != nullptr) options.environment["MPSSHIM_MANAGED"] = mode;
    Client client = start(broker, options);
    const long before = free_mib(client);
    require_ok(client, "take 40", broker);
    return before - free_mib(client);
  };
  {
    const BrokerFixture broker;
    CHECK(taken_mib(broker, "device") >= 40);
    CHECK(taken_mib(broker, "host") == 0);
    CHECK(taken_mib(broker, nullptr) == taken_mib(broker, "auto"));
  }
  BrokerOptions two;
  two.environment["MPSSHIM_CPU_DEVICES"] = "2";
  {
    const BrokerFixture broker(two);
    CHECK(taken_mib(broker, nullptr) >= 40);
    CHECK(taken_mib(broker, "host") == 0);
  }
  two.environment["MPSSHIM_CPU_APART"] = "1";
  const BrokerFixture broker(two);
  CHECK(taken_mib(broker, nullptr) == 0);
  CHECK(taken_mib(broker, "auto") == 0);
  CHECK(taken_mib(broker, "device") >= 40);
}
