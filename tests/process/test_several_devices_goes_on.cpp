// SPDX-License-Identifier: Apache-2.0
// A program that works on two devices, and what becomes of it when executors die or are restarted, one or both.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/process/several_devices.hpp"

using namespace mpsshim::test;

namespace {

Client talkative(const BrokerFixture& broker, const char* managed_mode = nullptr) {
  ProgramOptions options;
  if (managed_mode != nullptr) options.environment["MPSSHIM_MANAGED"] = managed_mode;
  options.arguments = {"converse"};
  options.converses = true;
  return {broker.start("two_devices", options), Client::Attached::waits};
}

// Each of these commands works, also after either executor's death, and over a restart.
void require_survives(const BrokerFixture& broker, Client& client, const std::vector<std::string>& commands) {
  const auto works = [&] {
    for (const std::string& command : commands) {
      const std::string answer = client.ask(command);
      INFO(command << ": " << answer << "\n" << broker.log());
      REQUIRE(answer == "ok");
    }
  };
  works();
  for (const std::size_t which : {0, 1}) {
    const std::vector<pid_t> servers = broker.servers();
    REQUIRE(servers.size() == 2);
    REQUIRE(::kill(servers[which], SIGKILL) == 0);
    works();
    INFO(broker.log());
    REQUIRE(eventually(std::chrono::seconds(10), [&] { return broker.servers().size() == 2; }));
  }
  REQUIRE(broker.ctl({"restart"}).ok());
  works();
  CHECK(broker.clients().size() == 2);  // sessions: one a device
}

}  // namespace

TEST_CASE("one program on two devices: it goes on after either executor's death, and over a restart") {
  const BrokerFixture broker(three_devices());
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client client = talkative(broker);
  require_survives(broker, client, {"work 0", "work 1"});
}

TEST_CASE("one program on two devices: managed memory that migrates outlives either executor, and a restart") {
  const BrokerFixture broker(three_devices());
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client client = talkative(broker, "device");
  require_survives(broker, client, {"managed"});
}

namespace {

// Nothing of any session's is under way: whose executor ends now has lost nothing.
bool is_at_rest(const BrokerFixture& broker) {
  constexpr std::string_view kKey = "\"in_flight\":";
  const std::string rows = broker.ctl({"ps", "--json"}).output;
  std::size_t found = 0;
  for (std::size_t at = rows.find(kKey); at != std::string::npos; at = rows.find(kKey, at + 1), ++found) {
    if (std::atol(rows.c_str() + at + kKey.size()) != 0) return false;
  }
  return found == 2;
}

// A signal to stop reaches one thread first, and the others when that one runs.
bool is_stopped(pid_t pid) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::string stat;
    std::getline(std::ifstream(task.path() / "stat"), stat);
    if (stat.find(") T ") == std::string::npos) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("one program on two devices: what it waits for on one waits for the other, whose executor dies before it has read of it") {
  const BrokerFixture broker(three_devices());
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client client = talkative(broker);
  REQUIRE(client.ask("meet") == "ok");
  for (const char* command : {"meet", "meet polling", "meet loading", "meet shared", "meet shared polling", "meet flooding"}) {
    for (const std::size_t which : {0, 1}) {
      const std::vector<pid_t> servers = broker.servers();
      REQUIRE(servers.size() == 2);
      REQUIRE(eventually(std::chrono::seconds(10), [&] { return is_at_rest(broker); }));
      REQUIRE(::kill(servers[which], SIGSTOP) == 0);
      REQUIRE(eventually(std::chrono::seconds(10), [&] { return is_stopped(servers[which]); }));
      client.begin(command);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      REQUIRE(::kill(servers[which], SIGKILL) == 0);
      const std::string answer = client.answer(std::chrono::seconds(20));
      INFO(command << ", executor " << which << ": " << answer << "\n" << broker.log());
      REQUIRE(answer == "ok");
      REQUIRE(eventually(std::chrono::seconds(10), [&] { return broker.servers().size() == 2; }));
    }
  }
}

TEST_CASE("one program on two devices: each reaches the other's memory after either executor's death, and over a restart") {
  const BrokerFixture broker(three_devices());
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  Client client = talkative(broker);
  if (client.ask("enable").starts_with("217")) MPSSHIM_SKIP("the GPUs are no peers");
  require_survives(broker, client, {"work 0", "reach 0", "work 1", "reach 1"});
}

TEST_CASE("memory that one process exports is used by another on another device") {
  const BrokerFixture broker(three_devices());
  if (devices_of(broker).size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  ProgramOptions options;
  options.arguments = {"converse"};
  options.converses = true;
  Client owner(broker.start("two_devices", options), Client::Attached::waits);
  Client user(broker.start("two_devices", options), Client::Attached::waits);
  const std::string handle = owner.ask("export"), descriptor = owner.ask("export_mapped");
  INFO(handle << "\n" << descriptor << "\n" << broker.log());
  REQUIRE(handle.starts_with("ok "));
  REQUIRE(descriptor.starts_with("ok "));
  for (unsigned round = 1; round <= 3; ++round) {
    CHECK(user.ask("open " + handle.substr(3)) == "ok");
    CHECK(user.ask("import " + descriptor.substr(3)) == "ok");
    CHECK(owner.ask("check " + std::to_string(3 * round) + " " + std::to_string(5 * round)) == "ok");
  }
  CHECK(owner.ask("open " + handle.substr(3)) != "ok");  // of its own process
}
