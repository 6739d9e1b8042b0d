// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/control/support/console.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

TEST_CASE("servers and their clients") {
  ControlFixture broker;
  Console console(broker);
  const std::string server = std::to_string(broker.executor().pid);
  CHECK(console.ok("get_server_list") == server + "\n");
  CHECK(console.ok("get_server_status " + server) == "INITIALIZING\n");
  broker.serve();
  CHECK(console.ok("get_server_status " + server) == "ACTIVE\n");
  CHECK(console.ok("get_client_list " + server).empty());
  TestClient client = broker.attach();
  CHECK(console.ok("get_client_list " + server) == std::to_string(getpid()) + "\n");
  const std::string table = console.ok("ps");
  CHECK(std::count(table.begin(), table.end(), '\n') == 2);
  CHECK(table.starts_with("PID"));
  CHECK(table.find("\n" + std::to_string(getpid()) + " ") != std::string::npos);
  CHECK(table.find("NAMESPACE") != std::string::npos);
  CHECK(table.find("active") == std::string::npos);
  CHECK(console.ok("ps -l").find("active") != std::string::npos);
  CHECK(console.ok("ps -p " + server) == table);
}

TEST_CASE("a server that has died too often is listed with its status FAULT until the next try") {
  ControlFixture broker;
  Console console(broker);
  broker.serve();
  const std::string number = std::to_string(broker.executor().pid);
  for (std::size_t lives = 1; lives <= 4; ++lives) {
    broker.executor().die();
    broker.next_life(lives + 1);
  }
  const std::string server = std::to_string(broker.executor().pid);
  broker.executor().die();
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.executors().at({0, 0})->state() == ExecutorState::fault; }));
  CHECK(console.ok("get_server_list") == number + "\n");
  CHECK(console.ok("get_server_status " + server) == "FAULT\n");
  CHECK(console.ok("get_server_status " + number) == "FAULT\n");
  broker.next_life(6);
  const std::string now = std::to_string(broker.executor().pid);
  CHECK(console.ok("get_server_list") == number + "\n");
  for (const std::string& name : {number, server, now}) CHECK(console.ok("get_server_status " + name) == "ACTIVE\n");
  CHECK(console.ok("servers").find("\n" + number + " ") != std::string::npos);
  CHECK(console.ok("servers").find(" " + now + " ") != std::string::npos);
}

TEST_CASE("quit waits for clients, for so long, or not at all") {
  ControlFixture broker;
  Console console(broker);
  console.ok("quit");
  CHECK(console.quit == 1'000'000);
  console.ok("quit --now");
  CHECK(console.quit == 0);
  console.ok("quit -t 30");
  CHECK(console.quit == 30);
}
