// SPDX-License-Identifier: Apache-2.0
// The heap that kernels' malloc() takes from: what clients have left there goes with their executor, which is renewed when nobody is at work.
#include <optional>
#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr int kLeaks = 32;  // of 1 MiB; the heap has 8

void leak(const BrokerFixture& broker) {
  Client client(broker, "heap_client");
  (void)client.ask("take 1");  // late ones get nothing where nothing comes back
}

// Most of the heap, as nobody has used it, is a newcomer's before long.
bool heap_is_blank(const BrokerFixture& broker, std::string& last) {
  return eventually(std::chrono::seconds(30), [&] {
    Client client(broker, "heap_client");
    last = client.ask("take 6");
    return last == "ok blank";
  });
}

}  // namespace

TEST_CASE("after clients that leave memory on the device's heap the next one has all of it, blank") {
  const BrokerFixture broker;
  std::optional<Client> bystander;
  std::size_t others = 0;
  SECTION("alone") {}
  SECTION("beside an idle client, which goes on") {
    bystander.emplace(broker, "moving_client");
    REQUIRE(bystander->ask("hold") == "ok");
    others = 1;
  }
  for (int i = 0; i < kLeaks; ++i) leak(broker);
  REQUIRE(broker.wait_for_clients(others));
  std::string last;
  const bool is_blank = heap_is_blank(broker, last);
  INFO(broker.log());
  INFO(last);
  CHECK(is_blank);
  if (bystander) CHECK(bystander->ask("check") == "ok");
}

TEST_CASE("the heap stays while a client has memory of it, or is at work") {
  const BrokerFixture broker;
  SECTION("memory") {
    Client holder(broker, "heap_client");
    REQUIRE(holder.ask("take 1") == "ok blank");
    const std::vector<pid_t> before = broker.servers();
    for (int i = 0; i < 3; ++i) leak(broker);
    REQUIRE(broker.wait_for_clients(1));
    usleep(500'000);
    INFO(broker.log());
    CHECK(broker.servers() == before);
    CHECK(holder.ask("held") == "ok");
  }
  SECTION("work") {
    Client busy(broker, "moving_client");
    {
      Client leaving(broker, "heap_client");
      REQUIRE(leaving.ask("take 4") == "ok blank");
      REQUIRE(busy.ask("run") == "ok");
    }
    const std::vector<pid_t> before = broker.servers();
    usleep(500'000);
    INFO(broker.log());
    CHECK(broker.servers() == before);
    REQUIRE(busy.ask("end") == "ok");
    std::string last;
    const bool is_blank = heap_is_blank(broker, last);
    INFO(last);
    CHECK(is_blank);
  }
}
