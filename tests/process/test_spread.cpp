// SPDX-License-Identifier: Apache-2.0
// mpsbroker --spread: programs that name no device see the one with most room first.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/process/several_devices.hpp"

using namespace mpsshim::test;

namespace {

BrokerOptions spreading() {
  BrokerOptions options = three_devices();
  options.arguments = {"--spread"};
  return options;
}

Client begin(const BrokerFixture& broker) {
  ProgramOptions options;
  options.converses = true;
  return {broker.start("memory_client", options), Client::Attached::not_yet};
}

}  // namespace

TEST_CASE("spread: programs that come at once compute on different devices") {
  const BrokerFixture broker(spreading());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  for (unsigned round = 0; round < 3; ++round) {
    std::vector<Client> clients;
    for (std::size_t i = 0; i < devices.size(); ++i) clients.push_back(begin(broker));
    std::set<std::string> firsts;
    for (Client& client : clients) {
      REQUIRE(client.answer() == "ok attached");
      const std::string seen = client.ask("devices");
      CHECK(seen.starts_with("ok " + std::to_string(devices.size()) + " "));
      firsts.insert(first_of(seen));
      CHECK(stands_in(clients_on(broker, first_of(seen)), client));
      CHECK(client.ask("hold") == "ok");
      CHECK(client.ask("launch") == "ok");
    }
    CHECK(firsts == std::set(devices.begin(), devices.end()));
    clients.clear();
    REQUIRE(broker.wait_for_clients(0));
  }
}

TEST_CASE("spread: who names a device has it, a rank of a launcher has the broker's order, and others go where room is") {
  const BrokerFixture broker(spreading());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client named = on(broker, "0");
  Client in_order = on(broker, "0,1");
  Client rank = on(broker, "", "memory_client", {{"LOCAL_RANK", "1"}});
  for (Client* client : {&named, &in_order, &rank}) CHECK(first_of(client->ask("devices")) == devices[0]);
  CHECK(named.ask("devices").starts_with("ok 1 "));
  CHECK(in_order.ask("devices").starts_with("ok 2 "));
  Client beside = on(broker, "1");
  REQUIRE(beside.ask("take 300") == "ok");
  Client newcomer = on(broker, "");
  CHECK(first_of(newcomer.ask("devices")) == devices.back());  // of two the second, which has fewer clients
}

TEST_CASE("spread: a program sees the same devices in the same order over faults of its device and restarts") {
  const BrokerFixture broker(spreading());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client beside = on(broker, "0");
  Client client = on(broker, "");
  const std::string seen = client.ask("devices");
  REQUIRE(first_of(seen) == devices[1]);
  REQUIRE(client.ask("hold") == "ok");
  for (unsigned round = 0; round < 2; ++round) {
    REQUIRE(broker.ctl({"restart"}).ok());
    CHECK(client.ask("check") == "ok");
    CHECK(client.ask("launch") == "ok");
    CHECK(client.ask("devices") == seen);
    CHECK(stands_in(clients_on(broker, devices[1]), client));
  }
  Client later = on(broker, "");  // which the broker of the last restart finds a place for
  CHECK(first_of(later.ask("devices")) == (devices.size() > 2 ? devices[2] : devices[0]));
}

TEST_CASE("spread: children of one shell are spread") {
  const BrokerFixture broker(spreading());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  std::string script;
  for (std::size_t i = 0; i < devices.size(); ++i) script += "(echo devices; sleep 3) | " + built_program("memory_client") + " & ";
  ProgramOptions options;
  options.arguments = {"-c", script + "wait"};
  const Outcome outcome = broker.run("/bin/sh", options);
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  for (const std::string& uuid : devices) CHECK(outcome.output.find("ok " + std::to_string(devices.size()) + " " + uuid) != std::string::npos);
}

TEST_CASE("spread: a program on several devices works whatever their order is") {
  const BrokerFixture broker(spreading());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client beside = on(broker, "0");
  REQUIRE(beside.ask("hold") == "ok");
  for (const char* topic : {"contexts", "memory", "libraries", "copies", "peers", "pools"}) {
    const Outcome outcome = broker.run("two_devices", {topic});
    INFO(topic << ": " << outcome.explain() << "--- broker\n" << broker.log());
    CHECK(outcome.ok());
    CHECK(outcome.output == std::string(topic) + " right\n");
  }
  CHECK(beside.ask("check") == "ok");
}

TEST_CASE("without --spread all programs that name no device compute on the first") {
  const BrokerFixture broker(three_devices());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client one = on(broker, ""), two = on(broker, "");
  for (Client* client : {&one, &two}) CHECK(first_of(client->ask("devices")) == devices[0]);
}
