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
std::filesystem::path folder_of_driver(const TemporaryFolder& folder, const std::string& library = "libcuda_cpu.so") {
  std::filesystem::create_symlink(built_library(library), folder.path() / "libcuda.so.1");
  return folder.path();
}

// The CPU driver with a fault (programs/random_order/faulty_driver.cpp).
BrokerOptions on_faulty_driver(const std::string& fault) {
  BrokerOptions options;
  options.driver = built_library("libfaulty_driver_" + fault + ".so");
  return options;
}

// What a driver prints on which nodes that grow run with wrong parameters.
const std::string kGrown = "a node grew: ";

// Several clients, since a fault of timing need not show in one.
void require_noticed(const std::string& fault) {
  const BrokerFixture broker(on_faulty_driver(fault));
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

TEST_CASE("random operations of several clients whose launches are gathered") {
  BrokerOptions options;
  options.arguments = {"--test-gather", "1"};
  const BrokerFixture broker(options);
  std::vector<Program> clients;
  for (unsigned index = 0; index < 3; ++index) clients.push_back(broker.start("random_order", with(sequence(300 + index, 1500, 1 + index))));
  for (Program& client : clients) require_right(client.wait(limit()), broker.log());
  REQUIRE(broker.wait_for_clients(0));
}

TEST_CASE("launches that change places in a chain are noticed") { require_noticed("swapped_nodes"); }
TEST_CASE("launches with the arguments of others are noticed") { require_noticed("stale_nodes"); }
TEST_CASE("waits for events that are dropped are noticed") { require_noticed("dropped_waits"); }
TEST_CASE("fences that come early are noticed") { require_noticed("early_fences"); }
TEST_CASE("launches that leave their stream are noticed") { require_noticed("astray_launches"); }
TEST_CASE("nodes of chains that run with the parameters they had are noticed") { require_noticed("narrow_nodes"); }

TEST_CASE("a driver whose nodes must not grow is wrong where one does, and only there") {
  const TemporaryFolder folder;
  const auto use_node = [environment = folder_of_driver(folder, "libfaulty_driver_grown_nodes.so")](const std::string& made_with_bytes) {
    ProgramOptions options = with({"--node-bytes", made_with_bytes});
    options.environment["LD_LIBRARY_PATH"] = environment;
    options.environment.merge(sanitizer_environment());
    return run_program(built_program("random_order"), options, limit());
  };
  const Outcome wide = use_node("4096");
  require_right(wide, "");
  CHECK(wide.errors.find(kGrown) == std::string::npos);
  const Outcome small = use_node("20");
  INFO(small.explain());
  CHECK(small.exit_code == 1);
  CHECK(small.errors.find(kGrown + "from 20 bytes of parameters to 268") != std::string::npos);
  CHECK(small.errors.find(kWrong) != std::string::npos);
}

// It does nowhere but in nodes of the client's own: the driver's have room for so many bytes.
TEST_CASE("a client's node that would have to grow far does not, where the client's graph is the broker's") {
  const BrokerFixture broker(on_faulty_driver("grown_nodes"));
  const Outcome outcome = broker.run("random_order", with({"--node-bytes", "1036"}), limit());
  require_right(outcome, broker.log());
  CHECK(broker.log().find(kGrown) == std::string::npos);
}

TEST_CASE("no node of the executor's grows, whatever its launches' parameters") {
  BrokerOptions options = on_faulty_driver("grown_nodes");
  // Also where sessions change contexts, each of which has graphs of its own, and graphs are few and made while others run.
  const bool is_stirred = GENERATE(false, true);
  if (is_stirred) {
    options.arguments = {"--workers", "4", "--side-contexts", "3", "--test-move-ms", "3", "--test-window-ms", "5", "--test-stock", "2"};
  }
  const BrokerFixture broker(options);
  std::vector<Program> clients;
  for (unsigned index = 0; index < 3; ++index) clients.push_back(broker.start("random_order", with(sequence(200 + index, 2000))));
  std::vector<Outcome> outcomes;
  for (Program& client : clients) outcomes.push_back(client.wait(limit()));
  const std::string log = broker.log();
  INFO(log);
  CHECK(log.find(kGrown) == std::string::npos);
  CHECK(log.find("not in chains") == std::string::npos);
  for (const Outcome& outcome : outcomes) require_right(outcome, log);
  REQUIRE(broker.wait_for_clients(0));
}
