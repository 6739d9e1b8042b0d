// SPDX-License-Identifier: Apache-2.0
// The heap that kernels' malloc() takes from: what clients have left there goes with their executor, which is renewed when nobody is at work.
#include <optional>
#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr int kLeaks = 12;  // of 1 MiB; the heap has 8

void leak(const BrokerFixture& broker) {
  Client client(broker, "heap_client");
  (void)client.ask("take 1");  // late ones get nothing where nothing comes back
}

// Most of the heap, as a newcomer finds it.
std::string take_most(const BrokerFixture& broker) { return Client(broker, "heap_client").ask("take 6"); }

// The same, and gives it back with what is written there.
std::string litter_most(const BrokerFixture& broker) { return Client(broker, "heap_client").ask("litter 6"); }

bool are_renewed(const BrokerFixture& broker, const std::vector<pid_t>& before) {
  return eventually(std::chrono::seconds(30), [&] { return broker.servers() != before && !broker.servers().empty(); });
}

}  // namespace

TEST_CASE("what one client leaves on the device's heap the next one does not find") {
  const BrokerFixture broker;
  CHECK(take_most(broker) == "ok blank");
  const std::string next = take_most(broker);  // begins while the first one ends
  INFO(broker.log());
  CHECK(next == "ok blank");
}

TEST_CASE("after clients that leave memory on the device's heap the next one has all of it, blank") {
  const BrokerFixture broker;
  std::optional<Client> bystander;
  SECTION("alone") {}
  SECTION("beside an idle client, which goes on") {
    bystander.emplace(broker, "moving_client");
    REQUIRE(bystander->ask("hold") == "ok");
  }
  for (int i = 0; i < kLeaks; ++i) leak(broker);
  REQUIRE(broker.wait_for_clients(bystander ? 1 : 0));
  if (bystander) {
    CHECK(are_renewed(broker, broker.servers()));
  } else {
    usleep(1'000'000);  // renewals take a tenth of the time
  }
  const std::string last = take_most(broker);
  INFO(broker.log());
  CHECK(last == "ok blank");
  if (bystander) CHECK(bystander->ask("check") == "ok");
}

TEST_CASE("an executor is not renewed for a module whose kernels may use the heap while none of them has run") {
  const BrokerFixture broker;
  const std::vector<pid_t> before = broker.servers();
  {
    Client client(broker, "heap_client");
    CHECK(client.ask("plain") == "ok");
  }
  REQUIRE(broker.wait_for_clients(0));
  usleep(1'500'000);
  INFO(broker.log());
  CHECK(broker.servers() == before);
}

TEST_CASE("a client that does something now and then is not disturbed for what others have left on the heap") {
  const BrokerFixture broker;
  Client bystander(broker, "moving_client");
  REQUIRE(bystander.ask("hold") == "ok");
  const std::vector<pid_t> before = broker.servers();
  leak(broker);
  for (int i = 0; i < 12; ++i) {
    usleep(250'000);
    REQUIRE(bystander.ask("check") == "ok");
  }
  INFO(broker.log());
  CHECK(broker.servers() == before);
  CHECK(are_renewed(broker, before));
  CHECK(bystander.ask("check") == "ok");
}

TEST_CASE("the heap stays while a client has memory of it, or is at work") {
  const BrokerFixture broker;
  SECTION("memory") {
    Client holder(broker, "heap_client");
    REQUIRE(holder.ask("take 1") == "ok blank");
    const std::vector<pid_t> before = broker.servers();
    for (int i = 0; i < 3; ++i) leak(broker);
    REQUIRE(broker.wait_for_clients(1));
    usleep(2'000'000);
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
    usleep(2'000'000);
    INFO(broker.log());
    CHECK(broker.servers() == before);
    REQUIRE(busy.ask("end") == "ok");
    CHECK(are_renewed(broker, before));
    CHECK(take_most(broker) == "ok blank");
  }
}

TEST_CASE("beside others that use the device's heap a newcomer finds a blank one, in another executor, as often as clients come and go") {
  const BrokerFixture broker;
  const Client busy(broker, "moving_client");  // of whom nothing is asked
  Client holder(broker, "heap_client");
  REQUIRE(holder.ask("take 1") == "ok blank");
  const std::vector<pid_t> before = broker.servers();
  CHECK(litter_most(broker) == "ok blank");  // nobody has left anything yet
  {
    Client second(broker, "heap_client");
    CHECK(second.ask("take 6") == "ok blank");
    CHECK(broker.servers().size() == 2);
    Client third(broker, "heap_client");  // beside it
    CHECK(third.ask("litter 1") == "ok blank");
    CHECK(broker.servers().size() == 2);
  }
  for (int i = 0; i < 3; ++i) {
    INFO(broker.log());
    CHECK(litter_most(broker) == "ok blank");
  }
  INFO(broker.log());
  CHECK(holder.ask("held") == "ok");
  CHECK(broker.servers().front() == before.front());
}

TEST_CASE("a newcomer that goes to another executor for its heap keeps what it has") {
  const BrokerFixture broker;
  Client holder(broker, "heap_client");
  REQUIRE(holder.ask("take 1") == "ok blank");
  CHECK(litter_most(broker) == "ok blank");
  Client mover(broker, "heap_client");
  REQUIRE(mover.ask("hold") == "ok");
  CHECK(broker.servers().size() == 1);
  CHECK(mover.ask("litter 6") == "ok blank");
  INFO(broker.log());
  CHECK(broker.servers().size() == 2);
  CHECK(mover.ask("check") == "ok");
}

TEST_CASE("where no other executor may be had a newcomer is told of it in the log, and finds what was left") {
  BrokerOptions options;
  options.arguments = {"--executors", "1"};
  const BrokerFixture broker(options);
  Client holder(broker, "heap_client");
  REQUIRE(holder.ask("take 1") == "ok blank");
  CHECK(litter_most(broker) == "ok blank");
  CHECK(litter_most(broker) == "ok used");
  CHECK(broker.log().find("may find what clients that have ended have left on the device's heap of executor 0") != std::string::npos);
}
