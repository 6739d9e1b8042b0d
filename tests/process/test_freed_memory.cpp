// SPDX-License-Identifier: Apache-2.0
// What a killed client had of the device's memory is free again at once. It is the GPU's free memory that is looked at, so no other test runs
// meanwhile.
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
