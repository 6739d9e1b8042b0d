// SPDX-License-Identifier: Apache-2.0
// Many clients that wait after every few launches: their streams go to contexts of further workers and back, and nothing of it shows.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr unsigned kClients = 8;

Program start_rounds(const BrokerFixture& broker, const std::string& seconds, unsigned seed) {
  ProgramOptions options;
  options.arguments = {seconds, std::to_string(seed)};
  return broker.start("rounds", options);
}

void require_right(Program& client, const BrokerFixture& broker) {
  const Outcome outcome = client.wait(std::chrono::seconds(100));
  INFO(outcome.explain() << "--- broker\n" << broker.log());
  REQUIRE(outcome.ok());
  REQUIRE(outcome.output.find(" rounds, right\n") != std::string::npos);
}

}  // namespace

TEST_CASE("many clients that wait after every few launches are all right, also when some are killed, and in the next executor") {
  BrokerOptions options;
  options.arguments = {"--workers", "4", "--side-contexts", "3"};
  const BrokerFixture broker(options);
  const auto were_moved = [&] { return broker.log().find(" serves it from now on") != std::string::npos; };
  // Beside other programs clients may not come to wait often enough: then there are more of them. The CPU driver is too slow for that altogether.
  constexpr unsigned kMostGenerations = 6;
  for (unsigned generation = 0; generation < 2 || (on_gpu() && !were_moved() && generation < kMostGenerations); ++generation) {
    std::vector<Program> victims;
    for (unsigned index = 0; index < kClients / 2; ++index) victims.push_back(start_rounds(broker, "60", 100 + index));
    REQUIRE(broker.wait_for_clients(kClients / 2));
    std::vector<Program> clients;
    for (unsigned index = 0; index < kClients; ++index) clients.push_back(start_rounds(broker, "1.5", 10 * generation + index));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    for (Program& victim : victims) victim.send(SIGKILL);
    if (generation == 1) {  // what was made for them in this executor is made again in the next
      const Outcome restarted = broker.ctl({"restart", "executors"});
      INFO(restarted.explain() << broker.log());
      REQUIRE(restarted.ok());
    }
    for (Program& client : clients) require_right(client, broker);
    REQUIRE(broker.wait_for_clients(0));
  }
  if (on_gpu()) REQUIRE(were_moved());
}
