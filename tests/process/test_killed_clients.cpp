// SPDX-License-Identifier: Apache-2.0
// Clients that are killed at any moment, from before they attach to the middle of queued work: the broker gives everything back, and a client
// that was there all along notices nothing.
#include <signal.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

Program start_victim(const BrokerFixture& broker, int turn) {
  ProgramOptions options;
  const bool storms = turn % 2 == 0;
  options.arguments = {storms ? "1000000000" : "60"};
  return broker.start(storms ? "launch_storm" : "process1", options);
}

// What a killed client had queued may run to its end: a slow build or a busy machine makes nobody's executor be replaced, which would
// end the client beside it (test_lost_executors.cpp has that).
BrokerOptions patient() {
  BrokerOptions options;
  options.arguments = {"--orphan-ms", "20000"};
  return options;
}

// Kills `count` clients, each a random while after its start. The seed is fixed, so that a failure comes again.
void kill_clients(const BrokerFixture& broker, int count) {
  std::mt19937 random(20250101);
  std::uniform_int_distribution<int> age_us(0, 60'000);
  for (int turn = 0; turn < count; ++turn) {
    Program victim = start_victim(broker, turn);
    std::this_thread::sleep_for(std::chrono::microseconds(age_us(random)));
    victim.send(SIGKILL);
    const Outcome& outcome = victim.wait();
    INFO("turn " << turn << ": " << outcome.explain() << broker.log());
    REQUIRE(outcome.signal == SIGKILL);
  }
}

}  // namespace

TEST_CASE("two hundred killed clients leave nothing at the broker") {
  BrokerFixture broker(patient());
  kill_clients(broker, 20);  // pools and caches fill
  // The broker keeps the images it has seen: each victim's own is among them before anything is counted.
  for (const char* program : {"vector_add_drv", "process1", "process2", "launch_storm"})
    REQUIRE(broker.run(program, std::vector<std::string>{}).ok());
  REQUIRE(broker.wait_for_clients(0));
  const Resources before = broker.settled_resources();
  kill_clients(broker, 200);
  REQUIRE(broker.wait_for_clients(0));
  const bool back = eventually(std::chrono::seconds(10), [&] { return broker.resources().is_within(before); });
  INFO("before: " << before.explain() << "after: " << broker.resources().explain() << broker.log());
  REQUIRE(back);
  REQUIRE(broker.run("process1", std::vector<std::string>{}).ok());
}

TEST_CASE("a client beside killed ones is right to its end") {
  BrokerFixture broker(patient());
  ProgramOptions options;
  options.arguments = {"4"};
  Program bystander = broker.start("process2", options);
  REQUIRE(broker.wait_for_clients(1));
  kill_clients(broker, 40);
  const Outcome& outcome = bystander.wait();
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
}
