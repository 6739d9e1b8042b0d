// SPDX-License-Identifier: Apache-2.0
// Random operations over several streams, their outcome compared with a model of the same sequence (programs/random_order); and drivers that
// get the order wrong, which must not pass. With MPSSHIM_TEST_RANDOM_SECONDS=N each client goes on with further seeds for so long; run this
// program itself then, since CTest limits its time.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// A word of the text that tells a wrong outcome from any other failure.
const std::string kWrong = "wrong: ";

std::vector<std::string> sequence(unsigned seed, unsigned operations, unsigned threads = 1) {
  std::vector<std::string> arguments = {"--seed",    std::to_string(seed),   "--operations", std::to_string(operations),
                                        "--threads", std::to_string(threads)};
  if (const char* seconds = std::getenv("MPSSHIM_TEST_RANDOM_SECONDS")) arguments.insert(arguments.end(), {"--seconds", seconds});
  return arguments;
}

std::chrono::seconds limit() {
  const char* seconds = std::getenv("MPSSHIM_TEST_RANDOM_SECONDS");
  return std::chrono::seconds(100 + (seconds != nullptr ? std::atoi(seconds) : 0));
}

ProgramOptions with(std::vector<std::string> arguments) {
  ProgramOptions options;
  options.arguments = std::move(arguments);
  return options;
}

void require_right(const Outcome& outcome, const std::string& log) {
  INFO(outcome.explain() << "--- broker\n" << log);
  REQUIRE(outcome.ok());
  REQUIRE(outcome.output.find(" right\n") != std::string::npos);
}

// A folder in which the driver has the name that programs ask for.
std::filesystem::path folder_of_driver(const TemporaryFolder& folder) {
  std::filesystem::create_symlink(built_library("libcuda_cpu.so"), folder.path() / "libcuda.so.1");
  return folder.path();
}

// Several clients, since a fault of timing need not show in one.
void require_noticed(const std::string& fault) {
  BrokerOptions faulty;
  faulty.driver = built_library("libfaulty_driver_" + fault + ".so");
  const BrokerFixture broker(faulty);
  unsigned noticed = 0;
  std::string last;
  for (unsigned seed = 1; seed <= 4 && noticed == 0; ++seed) {
    const Outcome outcome = broker.run("random_order", with({"--seed", std::to_string(seed), "--operations", "3000"}), limit());
    last = outcome.explain();
    if (outcome.exit_code == 1 && outcome.errors.find(kWrong) != std::string::npos) ++noticed;
  }
  INFO(fault << " passed for right: " << last << "--- broker\n" << broker.log());
  REQUIRE(noticed == 1);
}

}  // namespace

TEST_CASE("random operations on the driver itself") {
  // The model is believed only because drivers agree with it that were there before the broker.
  const TemporaryFolder folder;
  ProgramOptions options = with(sequence(1, 3000));
  if (!on_gpu()) options.environment["LD_LIBRARY_PATH"] = folder_of_driver(folder);
  options.environment.merge(sanitizer_environment());
  require_right(run_program(built_program("random_order"), options, limit()), "");
}

TEST_CASE("random operations of one client") {
  const BrokerFixture broker;
  for (unsigned seed = 1; seed <= 3; ++seed) require_right(broker.run("random_order", with(sequence(seed, 3000)), limit()), broker.log());
  REQUIRE(broker.wait_for_clients(0));
}

TEST_CASE("random operations of several threads") {
  const BrokerFixture broker;
  require_right(broker.run("random_order", with(sequence(11, 1500, 3)), limit()), broker.log());
}

TEST_CASE("random operations of several clients at once") {
  const BrokerFixture broker;
  std::vector<Program> clients;
  for (unsigned index = 0; index < 5; ++index) clients.push_back(broker.start("random_order", with(sequence(100 + index, 1500))));
  for (Program& client : clients) require_right(client.wait(limit()), broker.log());
  REQUIRE(broker.wait_for_clients(0));
}

TEST_CASE("launches that change places in a chain are noticed") { require_noticed("swapped_nodes"); }
TEST_CASE("launches with the arguments of others are noticed") { require_noticed("stale_nodes"); }
TEST_CASE("waits for events that are dropped are noticed") { require_noticed("dropped_waits"); }
TEST_CASE("fences that come early are noticed") { require_noticed("early_fences"); }
TEST_CASE("launches that leave their stream are noticed") { require_noticed("astray_launches"); }
