// SPDX-License-Identifier: Apache-2.0
// What a killed client had of the device's memory is free again at once. It is the GPU's free memory that is looked at, so no other test runs
// meanwhile.
#include <signal.h>

#include <algorithm>
#include <array>
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

// Of a program on two devices, each of which reaches the other's memory.
TEST_CASE("a program with memory that two devices reach, killed at any instant: it is back on both") {
  constexpr std::chrono::seconds kLimit{5};
  constexpr long kSlackMib = 4;
  BrokerOptions options;
  options.arguments = {"--orphan-ms", "20000"};
  options.environment["MPSSHIM_CPU_DEVICES"] = "2";
  BrokerFixture broker(options);
  const auto on = [&](const char* device) {
    ProgramOptions one;
    one.converses = true;
    one.environment["CUDA_VISIBLE_DEVICES"] = device;
    return Client(broker.start("memory_client", one), Client::Attached::waits);
  };
  {
    Client any(broker, "memory_client");
    if (any.ask("devices").starts_with("ok 1 ")) MPSSHIM_SKIP("the machine has one GPU");
  }
  Client first = on("0"), second = on("1");
  for (Client* bystander : {&first, &second}) REQUIRE(bystander->ask("hold") == "ok");
  ProgramOptions program;
  program.converses = true;
  program.arguments = {"converse"};
  const auto begin = [&] { return Client(broker.start("two_devices", program), Client::Attached::waits); };
  {
    Client client = begin();
    if (client.ask("enable").starts_with("217")) MPSSHIM_SKIP("the GPUs are no peers");
    for (const char* command : {"reach 0", "reach 1"}) REQUIRE(client.ask(command) == "ok");
  }
  REQUIRE(broker.wait_for_clients(2));
  const auto free_mib = [](Client& client) { return std::stol(client.ask("free").substr(3)); };
  const std::array<long, 2> before{free_mib(first), free_mib(second)};
  std::mt19937 random(20261126);
  for (int turn = 0; turn < 25; ++turn) {
    Client victim = begin();
    if (turn % 3 != 0) {
      REQUIRE(victim.ask("enable") == "ok");
      CHECK(free_mib(first) < before[0]);
      CHECK(free_mib(second) < before[1]);
    }
    victim.begin(turn % 3 == 0 ? "enable" : turn % 2 == 0 ? "reach 0" : "reach 1");
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    victim.program().send(SIGKILL);
    (void)victim.program().wait();
    const bool back = eventually(kLimit, [&] { return free_mib(first) >= before[0] - kSlackMib && free_mib(second) >= before[1] - kSlackMib; });
    INFO("turn " << turn << ": " << free_mib(first) << " of " << before[0] << " and " << free_mib(second) << " of " << before[1] << " MiB are free\n"
                 << broker.log());
    REQUIRE(back);
  }
  for (Client* bystander : {&first, &second}) REQUIRE(bystander->ask("check") == "ok");
}

// Each kind of moment of a client's life: before it attaches, loading modules, taking device and pinned memory, copying, launching, stopped in the
// middle of it. What it had is free again within a second of its death; a machine with other things to do gets some more.
TEST_CASE("a client killed at any instant: its memory is back within moments") {
  constexpr std::chrono::seconds kLimit{5};
  constexpr long kSlackMib = 4;  // a module that stays in the cache
  BrokerOptions options;
  options.arguments = {"--orphan-ms", "20000"};  // what it had queued may run to its end
  BrokerFixture broker(options);
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
