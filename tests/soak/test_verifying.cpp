// SPDX-License-Identifier: Apache-2.0
// The verifying clients notice what they are there for: drivers that get order, arguments, waits or fences wrong must not pass.
#include <string>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// Several clients, since a fault of timing need not show in one.
void require_noticed(const std::string& fault) {
  BrokerOptions faulty;
  faulty.driver = built_library("libfaulty_driver_" + fault + ".so");
  const BrokerFixture broker(faulty);
  std::string last;
  bool is_noticed = false;
  for (unsigned seed = 1; seed <= 6 && !is_noticed; ++seed) {
    ProgramOptions client;
    client.arguments = {"--small", "--seconds", "8", "--seed", std::to_string(seed), "--only", "chains,uploads,downloads,words,branches"};
    const Outcome outcome = broker.run("soak_verify", client);
    last = outcome.explain();
    is_noticed =
        outcome.exit_code == 1 && outcome.errors.find("WRONG: ") != std::string::npos && outcome.errors.find(" and not ") != std::string::npos;
  }
  INFO(fault << " passed for right: " << last << "--- broker\n" << broker.log());
  REQUIRE(is_noticed);
}

}  // namespace

TEST_CASE("verifying clients notice nodes that run in another order") { require_noticed("swapped_nodes"); }
TEST_CASE("verifying clients notice nodes with the arguments of another launch") { require_noticed("stale_nodes"); }
TEST_CASE("verifying clients notice waits for events that are left out") { require_noticed("dropped_waits"); }
TEST_CASE("verifying clients notice fences that come before the work") { require_noticed("early_fences"); }
TEST_CASE("verifying clients notice launches that go into another stream") { require_noticed("astray_launches"); }
