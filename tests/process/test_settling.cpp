// SPDX-License-Identifier: Apache-2.0
// What a program finds when there is no broker, when it is told to do without, and when there is one.
#include <algorithm>
#include <filesystem>
#include <string>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

std::size_t lines_with(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, text.find('\n', at))) {
    ++count;
    if (text.find('\n', at) == std::string::npos) break;
  }
  return count;
}

ProgramOptions without_broker(const TemporaryFolder& folder) {
  ProgramOptions options;
  options.environment = client_environment(folder.path());
  return options;
}

}  // namespace

TEST_CASE("MPSSHIM_REQUIRE without a broker is an error and one clear line") {
  const TemporaryFolder folder;
  for (const char* program : {"process1", "vector_add_drv"}) {
    const Outcome outcome = run_program(built_program(program), without_broker(folder), std::chrono::seconds(10));
    INFO(program << ": " << outcome.explain());
    REQUIRE_FALSE(outcome.timed_out);
    REQUIRE(outcome.signal == 0);
    REQUIRE(outcome.exit_code == 1);
    REQUIRE(lines_with(outcome.errors, "MPSSHIM_REQUIRE") == 1);
    REQUIRE(outcome.errors.find(folder.path().string()) != std::string::npos);
  }
}

TEST_CASE("without a broker a program runs as if the library were not there") {
  const TemporaryFolder folder;
  ProgramOptions preloaded = without_broker(folder);
  preloaded.environment["MPSSHIM_REQUIRE"] = "0";
  const Outcome with = run_program(built_program("process1"), preloaded, std::chrono::seconds(30));
  const Outcome plain = run_program(built_program("process1"), {}, std::chrono::seconds(30));
  INFO("with the library: " << with.explain() << "without: " << plain.explain());
  REQUIRE(with.signal == 0);
  REQUIRE(with.exit_code == plain.exit_code);
  REQUIRE(with.output == plain.output);
}

TEST_CASE("a broker that is only elsewhere is told of, and one that nobody names is found") {
  const BrokerFixture broker;
  const TemporaryFolder folder;
  const TemporaryFolder nowhere;
  std::filesystem::create_symlink(broker.pipe_dir(), folder.path() / "mpsshim");
  ProgramOptions options;
  options.environment = client_environment(nowhere.path());
  options.environment["XDG_RUNTIME_DIR"] = folder.path();
  const std::string found = "one answers in " + (folder.path() / "mpsshim").string();
  const Outcome required = run_program(built_program("process1"), options, std::chrono::seconds(20));
  INFO(required.explain());
  CHECK(required.exit_code == 1);
  CHECK(lines_with(required.errors, found) == 1);
  options.environment["MPSSHIM_REQUIRE"] = "0";
  const Outcome passed = run_program(built_program("process1"), options, std::chrono::seconds(20));
  INFO(passed.explain());
  CHECK(lines_with(passed.errors, "One answers in " + (folder.path() / "mpsshim").string()) == 1);
  options.environment["MPSSHIM_REQUIRE"] = "1";
  options.environment["CUDA_MPS_PIPE_DIRECTORY"] = "";
  const Outcome served = run_program(built_program("process1"), options, std::chrono::seconds(20));
  INFO(served.explain());
  CHECK(served.ok());
  CHECK(served.errors.empty());
}

TEST_CASE("a word that MPSSHIM_DEBUG does not know is told once, and the others hold") {
  const BrokerFixture broker;
  ProgramOptions options;
  options.environment["MPSSHIM_DEBUG"] = "settle,setle,,";
  const Outcome outcome = broker.run("process1", options);
  INFO(outcome.explain());
  CHECK(outcome.ok());
  CHECK(lines_with(outcome.errors, "MPSSHIM_DEBUG has no topic \"setle\": there are env, settle") == 1);
  CHECK(lines_with(outcome.errors, "Attached to the broker") == 1);
}

TEST_CASE("MPSSHIM_DISABLE goes past a broker that is there") {
  BrokerFixture broker;
  ProgramOptions options;
  options.environment["MPSSHIM_DISABLE"] = "1";
  options.arguments = {"0.5"};
  Program program = broker.start("process1", options);
  bool seen = false;
  while (program.running()) {
    seen = seen || !broker.clients().empty();
    sleep_briefly();
  }
  INFO(program.wait().explain());
  REQUIRE_FALSE(seen);
  REQUIRE(program.wait().signal == 0);
}

TEST_CASE("mpsctl lists a client while it runs") {
  BrokerFixture broker;
  ProgramOptions options;
  options.arguments = {"3"};
  Program program = broker.start("process1", options);
  INFO(broker.log());
  REQUIRE(broker.wait_for_clients(1));
  REQUIRE(broker.clients().front() == program.pid());
  const Outcome ps = broker.ctl({"ps"});
  INFO(ps.explain());
  REQUIRE(ps.ok());
  REQUIRE(ps.output.find(std::to_string(program.pid())) != std::string::npos);
  REQUIRE(program.wait().ok());
  REQUIRE(broker.wait_for_clients(0));
}

TEST_CASE("mpsctl takes commands on standard input") {
  const BrokerFixture broker;
  ProgramOptions options;
  options.arguments = {"--pipe-dir", broker.pipe_dir()};
  options.input = "get_server_list\n";
  const Outcome outcome = run_program(built_program("mpsctl"), options, std::chrono::seconds(10));
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
}

TEST_CASE("mpsctl without a broker says so and fails") {
  const TemporaryFolder folder;
  ProgramOptions options;
  options.arguments = {"--pipe-dir", folder.path(), "ps"};
  const Outcome outcome = run_program(built_program("mpsctl"), options, std::chrono::seconds(10));
  INFO(outcome.explain());
  REQUIRE_FALSE(outcome.ok());
  REQUIRE_FALSE(outcome.timed_out);
  REQUIRE(outcome.errors.find(folder.path().string()) != std::string::npos);
}
