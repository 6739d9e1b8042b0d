// SPDX-License-Identifier: Apache-2.0
// A broker that ends under its clients: each gets an error soon, none hangs, none dies of a signal, and nothing of the broker stays.
#include <signal.h>

#include <vector>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

std::vector<Program> start_clients(const BrokerFixture& broker) {
  ProgramOptions for_a_minute;
  for_a_minute.arguments = {"60"};
  ProgramOptions many_launches;
  many_launches.arguments = {"1000000000"};
  std::vector<Program> programs;
  programs.push_back(broker.start("process1", for_a_minute));
  programs.push_back(broker.start("process2", for_a_minute));
  programs.push_back(broker.start("launch_storm", many_launches));
  return programs;
}

void require_errors(std::vector<Program>& programs) {
  for (Program& program : programs) {
    const Outcome& outcome = program.wait(std::chrono::seconds(15));
    INFO(outcome.explain());
    REQUIRE_FALSE(outcome.timed_out);
    REQUIRE(outcome.signal == 0);
    REQUIRE(outcome.exit_code == 1);
    REQUIRE(outcome.errors.find("failed") != std::string::npos);
  }
}

}  // namespace

TEST_CASE("mpsctl quit --now under clients gives each an error") {
  BrokerFixture broker;
  std::vector<Program> programs = start_clients(broker);
  REQUIRE(broker.wait_for_clients(programs.size()));
  const Outcome quit = broker.ctl({"quit", "--now"});
  INFO(quit.explain() << broker.log());
  REQUIRE(quit.ok());
  require_errors(programs);
  const Outcome& end = broker.process().wait(std::chrono::seconds(1));  // it had ended when the command returned
  INFO(end.explain());
  REQUIRE_FALSE(end.timed_out);
  REQUIRE(end.ok());
}

TEST_CASE("kill -9 of the broker gives each client an error") {
  BrokerFixture broker;
  std::vector<Program> programs = start_clients(broker);
  REQUIRE(broker.wait_for_clients(programs.size()));
  const std::vector<pid_t> servers = broker.servers();
  broker.process().send(SIGKILL);
  require_errors(programs);
  // Its executors go with it.
  for (const pid_t server : servers) {
    REQUIRE(eventually(std::chrono::seconds(10), [&] { return ::kill(server, 0) != 0; }));
  }
}

TEST_CASE("SIGTERM ends a broker as quit does") {
  BrokerFixture broker;
  broker.process().send(SIGTERM);
  const Outcome& end = broker.process().wait(std::chrono::seconds(15));
  INFO(end.explain());
  REQUIRE_FALSE(end.timed_out);
  REQUIRE(end.ok());
}
