// SPDX-License-Identifier: Apache-2.0
// A broker of several devices: each program computes on the one that it names, and what happens on one is no other's affair. The CPU driver has three
// here; on GPUs the cases run where the machine has two.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/process/several_devices.hpp"

using namespace mpsshim::test;

namespace {

const std::string kRefused = "2 CUDA_ERROR_OUT_OF_MEMORY";

void require_works(Client& client) {
  REQUIRE(client.ask("hold") == "ok");
  REQUIRE(client.ask("launch") == "ok");
}

}  // namespace

TEST_CASE("each program computes on the device that it names, by index, UUID and order, and on the first where it names none") {
  const BrokerFixture broker(three_devices());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client first = on(broker, "");
  Client second = on(broker, "1");
  Client by_name = on(broker, devices[1]);
  Client by_order = on(broker, "1,0");
  for (Client* client : {&first, &second, &by_name, &by_order}) require_works(*client);
  CHECK(first_of(first.ask("devices")) == devices[0]);
  CHECK(first.ask("devices").starts_with("ok " + std::to_string(devices.size()) + " "));
  for (Client* client : {&second, &by_name, &by_order}) CHECK(first_of(client->ask("devices")) == devices[1]);
  CHECK(by_order.ask("devices").starts_with("ok 2 "));
  CHECK(stands_in(clients_on(broker, devices[0]), first));
  for (Client* client : {&second, &by_name, &by_order}) {
    CHECK(stands_in(clients_on(broker, devices[1]), *client));
    CHECK_FALSE(stands_in(clients_on(broker, devices[0]), *client));
  }
  CHECK(broker.servers().size() == 2);
}

TEST_CASE("mpsrun gives each rank of a machine a device, and begins again behind the last") {
  const BrokerFixture broker(three_devices());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  for (std::size_t rank = 0; rank <= devices.size(); ++rank) {
    ProgramOptions options;
    options.converses = true;
    options.arguments = {"--device", "local", built_program("memory_client")};
    options.environment["OMPI_COMM_WORLD_LOCAL_RANK"] = std::to_string(rank);
    Client client(broker.start("mpsrun", options), Client::Attached::waits);
    CHECK(client.ask("devices").starts_with("ok 1 " + devices[rank % devices.size()]));
  }
}

TEST_CASE("what a fault costs stays on its device, also beside work") {
  const BrokerFixture broker(three_devices());
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client guilty = on(broker, "1", "test_client");
  Client beside = on(broker, "1", "test_client");
  Client busy = on(broker, "0", "test_client");
  REQUIRE(beside.ask("hold") == "ok");
  REQUIRE(busy.ask("hold") == "ok");
  busy.begin("storm 3000");
  const std::vector<pid_t> before = broker.servers();
  const std::string fault = guilty.ask("fault");
  CHECK(fault.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
  CHECK(beside.ask("check") == "ok");
  CHECK(busy.answer().rfind("ok ", 0) == 0);
  CHECK(busy.ask("check") == "ok");
  const std::vector<pid_t> after = broker.servers();
  REQUIRE(before.size() == 2);
  REQUIRE(after.size() == 2);
  CHECK((before[0] == after[0]) + (before[1] == after[1]) == 1);  // one executor is another process now, one is not
}

TEST_CASE("memory and its limits are each device's own") {
  const BrokerFixture broker(three_devices({{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "1=64M"}}));
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client limited = on(broker, "1");
  Client free = on(broker, "0");
  CHECK(limited.ask("total") == "ok 64");
  CHECK(limited.ask("take 66") == kRefused);
  CHECK(limited.ask("take 32") == "ok");
  CHECK(free.ask("take 200") == "ok");
}

TEST_CASE("programs on every device go on over a restart of the broker") {
  const BrokerFixture broker(three_devices());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  std::vector<Client> clients;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    clients.push_back(on(broker, std::to_string(i)));
    REQUIRE(clients.back().ask("hold") == "ok");
  }
  const Outcome restart = broker.ctl({"restart"});
  INFO(restart.explain() << broker.log());
  REQUIRE(restart.ok());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    CHECK(clients[i].ask("check") == "ok");
    CHECK(clients[i].ask("launch") == "ok");
    CHECK(first_of(clients[i].ask("devices")) == devices[i]);
  }
  Client newcomer = on(broker, "1");
  require_works(newcomer);
}

TEST_CASE("a device's executor that is killed is missed on that device alone") {
  const BrokerFixture broker(three_devices());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client first = on(broker, "0");
  const std::vector<pid_t> alone = broker.servers();
  REQUIRE(alone.size() == 1);
  Client second = on(broker, "1");
  require_works(first);
  require_works(second);
  std::vector<pid_t> both = broker.servers();
  std::erase(both, alone.front());
  REQUIRE(both.size() == 1);
  REQUIRE(::kill(both.front(), SIGKILL) == 0);
  CHECK(first.ask("launch") == "ok");
  CHECK(second.ask("check") == "ok");
  CHECK(second.ask("launch") == "ok");
  const std::vector<pid_t> after = broker.servers();
  CHECK(std::find(after.begin(), after.end(), alone.front()) != after.end());
  CHECK(std::find(after.begin(), after.end(), both.front()) == after.end());
}

TEST_CASE("an entry that names no device ends the list, and a list of none is no device") {
  const BrokerFixture broker(three_devices());
  const std::vector<std::string> devices = devices_of(broker);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client client = on(broker, "1,9,0");
  CHECK(client.ask("devices").starts_with("ok 1 " + devices[1]));
  ProgramOptions options;
  options.environment[kVisible] = "9";
  const Outcome none = broker.run("vector_add_drv", options);
  CHECK_FALSE(none.ok());
  CHECK((none.output + none.errors).find("CUDA_ERROR_NO_DEVICE") != std::string::npos);
}

// One subject of programs/two_devices.cpp, natively too where there are two GPUs: the same body is to be right there, but for what its comment says.
void run_on_two(const std::string& topic, bool natively = true) {
  const BrokerFixture broker(three_devices());
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  const auto require_right = [&](const Outcome& outcome) {
    INFO(topic << ": " << outcome.explain() << "--- broker\n" << broker.log());
    REQUIRE(outcome.ok());
    REQUIRE(outcome.output == topic + " right\n");
  };
  if (natively && on_gpu()) {
    ProgramOptions native;
    native.arguments = {topic};
    require_right(run_program(built_program("two_devices"), native));
  }
  require_right(broker.run("two_devices", {topic}));
  REQUIRE(broker.wait_for_clients(0));
}

void run_migrating_on_two(const std::string& topic, const char* way) {
  const BrokerFixture broker(three_devices());
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  ProgramOptions options;
  options.arguments = {topic};
  options.environment["MPSSHIM_MANAGED"] = "device";
  options.environment["MPSSHIM_MANAGED_TOUCHES"] = way;
  const Outcome outcome = broker.run("two_devices", options);
  INFO(topic << ", " << way << ": " << outcome.explain() << "--- broker\n" << broker.log());
  REQUIRE(outcome.ok());
  REQUIRE(outcome.output == topic + " right\n");
  CHECK(outcome.errors.find("have been at work") == std::string::npos);  // no touch has waited for what does not end
  REQUIRE(broker.wait_for_clients(0));
}

TEST_CASE("one program on two devices: contexts and what they make") { run_on_two("contexts"); }
TEST_CASE("one program on two devices: memory, whatever context is current") { run_on_two("memory"); }
TEST_CASE("one program on two devices: kernels of modules") { run_on_two("kernels"); }
TEST_CASE("one program on two devices: a library for both, with variables of each") { run_on_two("libraries"); }
TEST_CASE("one program on two devices: events of one order work of the other") { run_on_two("events"); }
TEST_CASE("one program on two devices: each waits for the other again and again") { run_on_two("ping_pong"); }
TEST_CASE("one program on two devices: streams that wait for work of the other, each for its own") { run_on_two("waits"); }
TEST_CASE("one program on two devices: events that processes share") { run_on_two("shared_events", false); }
TEST_CASE("one program on two devices: copies between them") { run_on_two("copies"); }
TEST_CASE("one program on two devices: pools") { run_on_two("pools"); }
TEST_CASE("one program on two devices: NULL streams of each") { run_on_two("null_streams"); }
TEST_CASE("one program on two devices: children of fork") { run_on_two("forks"); }
TEST_CASE("one program on two devices: graphs") { run_on_two("graphs"); }
TEST_CASE("one program on two devices: one of them is reset") { run_on_two("reset"); }
TEST_CASE("one program on two devices: whether they reach each other's memory") { run_on_two("peer_answers"); }
TEST_CASE("one program on two devices: one reaches the other's memory") { run_on_two("peers"); }
TEST_CASE("one program on two devices: copies where one reaches the other's memory") { run_on_two("peer_copies"); }
TEST_CASE("one program on two devices: threads that let one reach the other, and not any more") { run_on_two("peer_threads", false); }
TEST_CASE("one program on two devices: a fault on one that reaches the other") { run_on_two("peer_fault", false); }
TEST_CASE("one program on two devices: arrays copied between them") { run_on_two("peer_arrays"); }
TEST_CASE("one program on two devices: boxes copied where neither reaches the other") { run_on_two("apart_boxes"); }
TEST_CASE("one program on two devices: mapped memory for both") { run_on_two("peer_mappings"); }
TEST_CASE("one program on two devices: memory at addresses reserved for the other") { run_on_two("peer_aliases"); }
TEST_CASE("one program on two devices: a pool for both") { run_on_two("peer_pools"); }
TEST_CASE("one program on two devices: pinned memory of either, used by both") { run_on_two("host_memory"); }
TEST_CASE("one program on two devices: registered memory for both") { run_on_two("registered_memory"); }
TEST_CASE("one program on two devices: host memory is given up behind the other's work") { run_on_two("host_memory_in_use", false); }
TEST_CASE("one program on two devices: managed memory for both") { run_on_two("managed"); }
TEST_CASE("one program on two devices: a library's managed variable, one for both") { run_on_two("managed_variables"); }
TEST_CASE("one program on two devices: host memory that was there before the second device") { run_on_two("host_memory_before"); }
TEST_CASE("one program on two devices: what a fault on one costs what it shares with the other") { run_on_two("fault_in_common", false); }
TEST_CASE("one program on two devices: work that waits for what has faulted on the other") { run_on_two("fault_awaited", false); }
TEST_CASE("one program on two devices: threads that change between them") { run_on_two("threads"); }
TEST_CASE("one program on two devices: a fault on one") { run_on_two("fault", false); }

// Managed memory that migrates between the host and one device, which the other reaches there; by both ways to notice touches.
TEST_CASE("one program on two devices: managed memory that migrates, for both") {
  for (const char* topic : {"managed", "managed_variables", "host_memory_before", "managed_in_turns", "managed_threads", "managed_given_up"}) {
    for (const char* way : {"userfaultfd", "signal"}) run_migrating_on_two(topic, way);
  }
}
TEST_CASE("one program on two devices: managed memory that migrates, and a fault on one") {
  for (const char* way : {"userfaultfd", "signal"}) run_migrating_on_two("managed_fault", way);
}

namespace {

struct Rounds {
  unsigned count = 0;
  double longest_ms = 0;
};
Rounds rounds_of(const std::string& output) {  // "rounds N longest_ms MS"
  std::istringstream words(output);
  std::string rounds, longest;
  Rounds found;
  words >> rounds >> found.count >> longest >> found.longest_ms;
  return found;
}

}  // namespace

// Docs: devices.md, "Nobody waits for ever by us".
TEST_CASE("kernels that wait for each other on two devices, of two programs, beside two that load and free all the time") {
  const BrokerFixture broker(three_devices());
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  std::vector<Program> programs;
  for (const char* topic : {"meetings", "meetings", "churn", "churn"}) {
    ProgramOptions options;
    options.arguments = {topic};
    programs.push_back(broker.start("two_devices", options));
  }
  for (Program& program : programs) {
    const Outcome outcome = program.wait(std::chrono::seconds(100));
    INFO(outcome.explain() << "--- broker\n" << broker.log());
    REQUIRE(outcome.ok());
    const Rounds rounds = rounds_of(outcome.output);
    CHECK(rounds.count >= 3);
    CHECK(rounds.longest_ms < 30'000);
  }
  CHECK(broker.servers().size() >= 2);
  REQUIRE(broker.wait_for_clients(0));
}

TEST_CASE("the broker's own CUDA_VISIBLE_DEVICES says which devices there are, and in which order") {
  BrokerOptions options = three_devices();
  const BrokerFixture all(options);
  const std::vector<std::string> devices = devices_of(all);
  if (devices.size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  options.environment[kVisible] = "1,0";
  const BrokerFixture turned(options);
  CHECK(devices_of(turned) == std::vector<std::string>{devices[1], devices[0]});
  Client client = on(turned, "");
  require_works(client);
  CHECK(first_of(client.ask("devices")) == devices[1]);
  Client other = on(turned, "1");
  require_works(other);
  CHECK(first_of(other.ask("devices")) == devices[0]);
}
