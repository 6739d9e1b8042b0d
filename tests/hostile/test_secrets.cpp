// SPDX-License-Identifier: Apache-2.0
// No client reads or changes another's memory, whatever records it forges; and what changes hands is blank: device memory, pinned and staging
// memory, the channel with its reply slots, the fence words, a module's variables.
#include <csignal>

#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

TEST_CASE("whatever a new client is given is blank") {
  BrokerFixture broker;
  const auto inspect = [&] { return Client(broker, "hostile_client").ask("inspect"); };
  SECTION("after clients that have ended") {
    for (int turn = 0; turn < 2; ++turn) {
      {
        Client writer(broker, "memory_client");
        REQUIRE(writer.ask("fill 150") == "ok");
        Client worker(broker);
        REQUIRE(worker.ask("hold") == "ok");
        REQUIRE(worker.ask("storm 50").starts_with("ok"));
      }
      REQUIRE(broker.wait_for_clients(0));
      CHECK(inspect() == "ok 0");
    }
  }
  SECTION("beside clients that have freed memory and live on") {
    Client writer(broker, "memory_client");
    for (int turn = 0; turn < 3; ++turn) {
      REQUIRE(writer.ask("fill 200") == "ok");
      REQUIRE(writer.ask("drop") == "ok");
      CHECK(inspect() == "ok 0");
    }
  }
  SECTION("after a client that was killed with its channel full") {
    for (int turn = 0; turn < 3; ++turn) {
      Client hostile(broker, "hostile_client");
      REQUIRE(hostile.ask("scribble all 200").starts_with("ok"));
      hostile.program().send(SIGKILL);
      (void)hostile.program().wait();
      CHECK(inspect() == "ok 0");
    }
  }
  SECTION("the test finds what is not blank: a client inspects its own pages after work") {
    Client client(broker, "hostile_client");
    REQUIRE(client.ask("deaf 50").starts_with("ok"));
    CHECK(client.ask("inspect") != "ok 0");
  }
}

TEST_CASE("forged records reach no other client's memory") {
  Scene scene;
  const std::string address = scene.bystander().ask("address");
  REQUIRE(address.starts_with("ok "));
  REQUIRE(scene.bystander().ask("own") == "ok");  // it has waited for what made that memory
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "reach " + address.substr(3)) == "ok");
  CHECK(scene.bystander().ask("own") == "ok");
  scene.end(hostile);
  scene.require_all_back("forged addresses");
}

TEST_CASE("a session's chunks, segments and images are nobody else's") {
  Scene scene;
  Client hostile = scene.hostile();
  CHECK(scene.attack(hostile, "borrow") == "ok");
  scene.end(hostile);
  scene.require_all_back("borrowing");
}

TEST_CASE("each client has a module's variables for itself, as the image says at first") {
  BrokerFixture broker;
  {
    Client first(broker), second(broker);
    REQUIRE(first.ask("global") == "ok");
    REQUIRE(second.ask("global") == "ok");
    for (const char* count : {"ok 6", "ok 7", "ok 8"}) {
      CHECK(first.ask("count") == count);
      CHECK(second.ask("count") == count);
    }
  }
  REQUIRE(broker.wait_for_clients(0));
  Client third(broker);
  REQUIRE(third.ask("global") == "ok");
  CHECK(third.ask("count") == "ok 6");
}
