// SPDX-License-Identifier: Apache-2.0
// Clients that are killed at any moment, from before they attach to the middle of queued work: the broker gives everything back, and a client
// that was there all along notices nothing.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <thread>

#include "tests/process/client.hpp"
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

// Sessions of clients that are gone are taken down when their work has ended, a moment after they are no longer listed.
Resources settled(const BrokerFixture& broker) {
  Resources last = broker.resources();
  (void)eventually(std::chrono::seconds(10), [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    const Resources now = broker.resources();
    const bool same = now == last;
    last = now;
    return same;
  });
  return last;
}

}  // namespace

TEST_CASE("two hundred killed clients leave nothing at the broker") {
  BrokerFixture broker(patient());
  kill_clients(broker, 20);  // pools and caches fill
  // The broker keeps the images it has seen: each victim's own is among them before anything is counted.
  for (const char* program : {"vector_add_drv", "process1", "process2", "launch_storm"}) REQUIRE(broker.run(program, std::vector<std::string>{}).ok());
  REQUIRE(broker.wait_for_clients(0));
  const Resources before = settled(broker);
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

// Each kind of moment of a client's life: before it attaches, loading modules, taking device and pinned memory, copying, launching, stopped in the
// middle of it. What it had is free again within a second of its death; a machine with other things to do gets some more.
TEST_CASE("a client killed at any instant: its memory is back within moments") {
  constexpr std::chrono::seconds kLimit{5};
  constexpr long kSlackMib = 4;  // a module that stays in the cache
  BrokerFixture broker(patient());
  Client bystander(broker, "memory_client");
  REQUIRE(bystander.ask("hold") == "ok");
  const auto free_mib = [&] { return std::stol(bystander.ask("free").substr(3)); };
  std::mt19937 random(20250102);
  // One of each kind has been: what modules they load is there.
  const char* const kinds[] = {"fill 150", "storm 200", "image good_fatbin", "global", "hold", "pin"};
  const auto start = [&](std::size_t kind) { return Client::begin(broker, kind == 0 ? "memory_client" : "test_client"); };
  for (std::size_t kind = 0; kind < std::size(kinds); ++kind) {
    Client client = start(kind);
    REQUIRE(client.answer() == "ok attached");
    REQUIRE(client.ask(kinds[kind]).starts_with("ok"));
  }
  REQUIRE(broker.wait_for_clients(1));
  const long before = free_mib();
  std::chrono::milliseconds longest{0};
  for (int turn = 0; turn < 60; ++turn) {
    const std::size_t kind = random() % std::size(kinds);
    Client victim = start(kind);
    victim.begin(kinds[kind]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 80'000));
    if (turn % 5 == 0) victim.program().send(SIGSTOP);
    victim.program().send(turn % 7 == 3 ? SIGINT : SIGKILL);
    if (turn % 7 == 3) victim.program().send(SIGCONT);
    (void)victim.program().wait();
    const auto died = std::chrono::steady_clock::now();
    const bool back = eventually(kLimit, [&] { return free_mib() >= before - kSlackMib; });
    longest = std::max(longest, std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - died));
    INFO("turn " << turn << ", killed in " << kinds[kind] << ": " << free_mib() << " of " << before << " MiB are free\n" << broker.log());
    REQUIRE(back);
  }
  std::cout << "memory of a killed client was back after at most " << longest.count() << " ms\n";
  REQUIRE(bystander.ask("check") == "ok");
}
