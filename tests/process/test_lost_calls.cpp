// SPDX-License-Identifier: Apache-2.0
// Driver calls that never return, or in which the driver crashes: the executor is replaced, the client whose call it was gets an MPS error that
// stays and is named in the log, the others go on. And work that the driver refuses after it was accepted.
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr auto kHang = "fill dead0001";
constexpr auto kCrash = "fill dead0002";
constexpr auto kRefusal = "fill dead0003";

BrokerOptions with_lost_calls(std::vector<std::string> arguments = {}) {
  BrokerOptions options;
  options.driver = built_library("libfaulty_driver_lost_calls.so");
  options.arguments = std::move(arguments);
  return options;
}

void require_guilty(Client& client, const char* command, const BrokerFixture& broker) {
  const std::string answer = client.ask(command);
  INFO(answer << "\n" << client.program().errors() << broker.log());
  REQUIRE(is_mps_error(answer));
  REQUIRE(is_mps_error(client.ask("hold")));
}

void require_goes_on(Client& client, const BrokerFixture& broker) {
  INFO(client.program().errors() << broker.log());
  REQUIRE(client.ask("check") == "ok");
  REQUIRE(client.ask("use") == "ok");
}

bool log_has(const BrokerFixture& broker, const std::string& text) {
  return eventually(std::chrono::seconds(10), [&] { return broker.log().find(text) != std::string::npos; });
}

}  // namespace

TEST_CASE("a driver call that never returns costs its client alone") {
  const BrokerFixture broker(with_lost_calls({"--hang-ms", "1000"}));
  Client guilty(broker), idle(broker);
  REQUIRE(idle.ask("hold") == "ok");
  require_guilty(guilty, kHang, broker);
  require_goes_on(idle, broker);
  const std::string whose = "hangs in cuMemsetAsync for Session 1 (pid " + std::to_string(guilty.program().pid());
  INFO(broker.log());
  REQUIRE(log_has(broker, whose));
}

TEST_CASE("a crash in a driver call costs the client whose call it was, and names it") {
  const BrokerFixture broker(with_lost_calls());
  Client guilty(broker), idle(broker), other(broker);
  REQUIRE(idle.ask("hold") == "ok");
  REQUIRE(other.ask("hold") == "ok");
  require_guilty(guilty, kCrash, broker);
  require_goes_on(idle, broker);
  require_goes_on(other, broker);
  INFO(broker.log());
  REQUIRE(log_has(broker, "it crashed in cuMemsetAsync for session 1"));
  REQUIRE(log_has(broker, "An executor has crashed here:"));
  REQUIRE(log_has(broker, "libfaulty_driver_lost_calls.so("));
  REQUIRE(broker.log().find("Session 1 (pid " + std::to_string(guilty.program().pid())) != std::string::npos);
}

TEST_CASE("an image over which the driver's compiler always crashes costs its client that load, nobody else anything") {
  const TemporaryFolder folder;
  const std::filesystem::path crash = folder.path() / "crash";
  std::filesystem::permissions(folder.path(), std::filesystem::perms::others_exec, std::filesystem::perm_options::add);  // it looks as nobody
  BrokerOptions options = with_lost_calls();
  options.environment = {{"MPSSHIM_TEST_CRASH", crash.string()}};
  const BrokerFixture broker(options);
  Client client(broker), idle(broker);
  REQUIRE(client.ask("hold") == "ok");
  REQUIRE(idle.ask("hold") == "ok");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // who still has work in flight is lost with any executor
  std::filesystem::create_directory(crash);
  const std::vector<pid_t> before = broker.servers();
  const std::string answer = client.ask("global");
  INFO(answer << "\n" << broker.log());
  REQUIRE(answer.find("CUDA_ERROR_INVALID_PTX") != std::string::npos);
  REQUIRE(log_has(broker, "the process that links images was ended by signal "));
  REQUIRE(broker.servers() == before);
  std::filesystem::remove(crash);
  require_goes_on(idle, broker);
  require_goes_on(client, broker);
}

TEST_CASE("where the GPU has no room for the compiler's context a load says so, and goes well once there is") {
  const TemporaryFolder folder;
  const std::filesystem::path full = folder.path() / "full";
  std::filesystem::permissions(folder.path(), std::filesystem::perms::others_exec, std::filesystem::perm_options::add);
  BrokerOptions options = with_lost_calls();
  options.environment = {{"MPSSHIM_TEST_FULL", full.string()}};
  const BrokerFixture broker(options);
  Client client(broker);
  REQUIRE(client.ask("hold") == "ok");
  // The process that has compiled for it goes, and with it its context.
  std::this_thread::sleep_for(std::chrono::milliseconds(1'000));
  std::filesystem::create_directory(full);
  const std::vector<pid_t> before = broker.servers();
  const std::string answer = client.ask("global");
  INFO(answer << "\n" << broker.log());
  REQUIRE(answer.find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  REQUIRE(log_has(broker, "PTX is compiled in a process of its own, which has no context on device 0: CUDA_ERROR_OUT_OF_MEMORY (2). It takes some "));
  std::filesystem::remove(full);
  REQUIRE(client.ask("global").find("ok") == 0);
  REQUIRE(broker.servers() == before);
}

TEST_CASE("a client whose accepted work the driver refuses is told so for good, the others go on") {
  const BrokerFixture broker(with_lost_calls());
  Client refused(broker), other(broker);
  REQUIRE(other.ask("hold") == "ok");
  REQUIRE(refused.ask("hold") == "ok");
  for (const char* command : {kRefusal, "check", "use", "hold"}) {
    const std::string answer = refused.ask(command);
    INFO(command << ": " << answer);
    REQUIRE(answer.find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  }
  require_goes_on(other, broker);
  REQUIRE(log_has(broker, ": the driver refused work that had been accepted (cuMemsetAsync"));
}

TEST_CASE("kernels and waits that last longer than the limit are no hanging calls") {
  const BrokerFixture broker(with_lost_calls({"--hang-ms", "200"}));
  Client spinning(broker), busy(broker);
  const std::vector<pid_t> before = broker.servers();
  REQUIRE(spinning.ask("spin") == "ok");
  REQUIRE(busy.ask("storm 1500").rfind("ok ", 0) == 0);
  INFO(broker.log());
  REQUIRE(broker.servers() == before);
}
