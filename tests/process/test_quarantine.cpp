// SPDX-License-Identifier: Apache-2.0
// A program that faults again and again is served by an executor of its own, until it has not faulted for a while.
#include <filesystem>
#include <sstream>
#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

BrokerOptions with(std::vector<std::string> arguments) {
  BrokerOptions options;
  options.arguments = std::move(arguments);
  return options;
}

void fault(const BrokerFixture& broker) {
  Client guilty(broker);
  const std::string answer = guilty.ask("fault");
  INFO(answer << "\n" << broker.log());
  REQUIRE(answer.rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
}

// The server that mpsctl lists for this client.
pid_t server_of(const BrokerFixture& broker, pid_t client) {
  for (const pid_t server : broker.servers()) {
    const Outcome list = broker.ctl({"get_client_list", std::to_string(server)});
    if (("\n" + list.output).find("\n" + std::to_string(client) + "\n") != std::string::npos) return server;
  }
  return -1;
}

bool log_has(const BrokerFixture& broker, const std::string& text, std::chrono::seconds limit = std::chrono::seconds(10)) {
  return eventually(limit, [&] { return broker.log().find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("after three faults a program's clients are in an executor of their own, the others no longer notice") {
  const BrokerFixture broker;
  Client bystander(broker, "memory_client");
  for (int i = 0; i < 3; ++i) fault(broker);
  INFO(broker.log());
  REQUIRE(log_has(broker, "is in quarantine"));
  const pid_t first = broker.servers().at(0);
  REQUIRE(server_of(broker, bystander.program().pid()) == first);
  for (int i = 0; i < 2; ++i) {
    Client again(broker);
    REQUIRE(server_of(broker, again.program().pid()) != first);
    REQUIRE(again.ask("fault").rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
    REQUIRE(broker.servers().at(0) == first);
  }
  Client other(broker, "memory_client");
  REQUIRE(server_of(broker, other.program().pid()) == first);
}

TEST_CASE("a copy of a program under another name is in quarantine as the program is") {
  const BrokerFixture broker(with({"--quarantine-faults", "2"}));
  const TemporaryFolder folder;
  const auto copy = [&](const char* name) {
    std::filesystem::copy_file(built_program("test_client"), folder.path() / name);
    return (folder.path() / name).string();
  };
  Client bystander(broker, "memory_client");
  const pid_t first = broker.servers().at(0);
  for (const char* name : {"one", "two"}) {
    Client guilty(broker, copy(name));
    REQUIRE(guilty.ask("fault").rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
  }
  INFO(broker.log());
  REQUIRE(log_has(broker, "is in quarantine"));
  const pid_t after = broker.servers().at(0);
  REQUIRE(after != first);
  Client again(broker, copy("three"));
  REQUIRE(server_of(broker, again.program().pid()) != after);
  REQUIRE(again.ask("fault").rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
  REQUIRE(broker.servers().at(0) == after);
  REQUIRE(server_of(broker, bystander.program().pid()) == after);
}

TEST_CASE("an interpreter is not in quarantine for one of its scripts") {
  const BrokerFixture broker(with({"--quarantine-faults", "2"}));
  const auto run = [&](const char* script) {
    ProgramOptions options;
    options.arguments = {script};
    options.converses = true;
    return Client(broker.start("test_client", options), Client::Attached::waits);
  };
  for (int i = 0; i < 2; ++i) {
    Client guilty = run("bad.py");
    REQUIRE(guilty.ask("fault").rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
  }
  INFO(broker.log());
  REQUIRE(log_has(broker, "bad.py (uid "));
  const pid_t first = broker.servers().at(0);
  Client good = run("good.py"), bad = run("bad.py");
  CHECK(server_of(broker, good.program().pid()) == first);
  CHECK(server_of(broker, bad.program().pid()) != first);
}

TEST_CASE("what is in quarantine stays there for the next program of the broker, and leaves when its time is over") {
  // Two faults and a restart are to come within it: on a GPU that others use as well each takes seconds.
  const unsigned quarantine_s = on_gpu() ? 60 : 6;
  const BrokerFixture broker(with({"--quarantine-faults", "2", "--quarantine-s", std::to_string(quarantine_s)}));
  Client bystander(broker, "memory_client");
  for (int i = 0; i < 2; ++i) fault(broker);
  REQUIRE(log_has(broker, "is in quarantine"));
  const Outcome restarted = broker.ctl({"restart"});
  INFO(restarted.explain() << broker.log());
  REQUIRE(restarted.ok());
  const pid_t first = broker.servers().at(0);
  Client again(broker);
  CHECK(server_of(broker, again.program().pid()) != first);
  CHECK(bystander.ask("hold") == "ok");
  CHECK(server_of(broker, bystander.program().pid()) == first);
  REQUIRE(log_has(broker, "leaves quarantine", std::chrono::seconds(quarantine_s + 10)));
  Client later(broker);
  CHECK(server_of(broker, later.program().pid()) == broker.servers().at(0));
}

TEST_CASE("faults before a restart count behind it") {
  const BrokerFixture broker(with({"--quarantine-faults", "2"}));
  fault(broker);
  REQUIRE(broker.ctl({"restart"}).ok());
  fault(broker);
  INFO(broker.log());
  CHECK(log_has(broker, "is in quarantine"));
}

TEST_CASE("a program leaves quarantine when it has not faulted for the time that is set") {
  const BrokerFixture broker(with({"--quarantine-faults", "1", "--quarantine-s", "2", "--idle-executor-ms", "200"}));
  fault(broker);
  Client inside(broker);
  const pid_t first = broker.servers().at(0);
  REQUIRE(server_of(broker, inside.program().pid()) != first);
  REQUIRE(log_has(broker, "leaves quarantine"));
  Client outside(broker);
  INFO(broker.log());
  REQUIRE(server_of(broker, outside.program().pid()) == first);
  REQUIRE(inside.ask("own") == "ok");  // who is there stays
}

TEST_CASE("where no second executor may be, the program is served as before and the log says so") {
  const BrokerFixture broker(with({"--executors", "1", "--quarantine-faults", "1"}));
  fault(broker);
  Client again(broker);
  REQUIRE(again.ask("own") == "ok");
  INFO(broker.log());
  REQUIRE(log_has(broker, "should be in quarantine and is served among the others"));
  REQUIRE(broker.servers().size() == 1);
}

TEST_CASE("with 0 faults nobody is put in quarantine") {
  const BrokerFixture broker(with({"--quarantine-faults", "0"}));
  for (int i = 0; i < 4; ++i) fault(broker);
  Client again(broker);
  REQUIRE(again.ask("own") == "ok");
  REQUIRE(broker.servers().size() == 1);
}

// What it calls itself, its path and its arguments, are its own choice.
TEST_CASE("a program whose path has line ends and colours forges no line of the log") {
  const BrokerFixture broker(with({"--quarantine-faults", "1"}));
  const TemporaryFolder folder;
  const std::string forged = "[2026-01-01 00:00:00.000 Control 1] Session 1 (pid 1, innocent)";
  const std::filesystem::path program = folder.path() / ("client\n" + forged + "\n\x1b[31m");
  std::filesystem::copy_file(built_program("test_client"), program);
  Client guilty(broker, program);
  REQUIRE(guilty.ask("fault").rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
  REQUIRE(log_has(broker, "is in quarantine"));
  std::istringstream lines(broker.log());
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(line.rfind(forged, 0) != 0);
    CHECK(line.find('\x1b') == std::string::npos);
  }
}

// The log says who it was and which kernel, and server.log what the manual's has.
TEST_CASE("a fault is told in the logs with client, kernel and outcome") {
  const BrokerFixture broker;
  Client bystander(broker, "memory_client");
  Client guilty(broker);
  const std::string pid = std::to_string(guilty.program().pid());
  REQUIRE(guilty.ask("fault").rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
  REQUIRE(log_has(broker, "Server status is ACTIVE: device 0"));
  const std::string log = broker.log();
  INFO(log);
  REQUIRE(log.find("is guilty of CUDA error 700") != std::string::npos);
  REQUIRE(log.find("nobody else had work under way that may end so; kernel store") != std::string::npos);
  for (const std::string& text : {"New client {" + pid + ", ", "Status of client {" + pid + ", ", std::string("is ACTIVE."),
                                  std::string("Server is handling a fatal GPU error on device 0"), std::string("Server status is FAULT"),
                                  "The client that has caused it: Session 2 (pid " + pid + ", ",
                                  std::string("is INACTIVE: it has the sticky CUDA error 700"), std::string("was idle and is unhurt"),
                                  std::string("Destroyed server context on device 0"), std::string("Creating server context on device 0")}) {
    INFO(text);
    REQUIRE(log_has(broker, text));
  }
}
