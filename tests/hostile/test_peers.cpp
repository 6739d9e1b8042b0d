// SPDX-License-Identifier: Apache-2.0
// Memory of one device reached from another: a client gets at its own sessions' and nobody else's, and nothing is left of it when it is killed.
#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

TEST_CASE("ranges and memory of another device: its own process's alone, and all is back when it is killed") {
  Scene scene({}, "peers", {{"MPSSHIM_CPU_DEVICES", "2"}});
  if (scene.broker().servers().size() < 2) MPSSHIM_SKIP("the machine has one GPU");
  const std::string address = scene.bystander().ask("address");
  REQUIRE(address.starts_with("ok "));
  REQUIRE(scene.bystander().ask("use") == "ok");  // and waits for it: "check" has streams idle
  for (int round = 0; round < 3; ++round) {
    Client hostile = scene.hostile();
    CHECK(scene.attack(hostile, "peers " + address.substr(3)) == "ok");
    scene.end(hostile);  // killed, with memory of its other session mapped
  }
  scene.require_newcomer_served();
  scene.require_all_back("peers");
}
