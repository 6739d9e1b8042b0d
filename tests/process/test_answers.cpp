// SPDX-License-Identifier: Apache-2.0
// What mpsctl answers, read by parsers that are not ours (check_answers.py), with a client whose name means harm; and command lines that cannot be
// understood.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

TEST_CASE("answers have the keys that the document promises, and hold whatever a program calls itself") {
  const BrokerFixture broker;
  const TemporaryFolder folder;
  const std::filesystem::path program = folder.path() / "a\",b'\\\n{}\x1b[31m\xff\xe2\x80\xae;c";
  std::filesystem::copy_file(built_program("test_client"), program);
  const Client client(broker, program);
  ProgramOptions options;
  options.arguments = {"-B",
                       MPSSHIM_SOURCE_DIR "/tests/process/check_answers.py",
                       built_program("mpsctl"),
                       broker.pipe_dir(),
                       MPSSHIM_SOURCE_DIR "/docs/service.md",
                       R"(a",b'\\x0a{}\x1b[31m\xff\xe2\x80\xae;c)"};
  const Outcome outcome = run_program(MPSSHIM_PYTHON, options);
  INFO(outcome.explain());
  CHECK(outcome.ok());
}

TEST_CASE("answers about static partitions have the keys that the document promises") {
  BrokerOptions parted;
  parted.arguments = {"--static-partitioning"};
  const BrokerFixture broker(parted);
  REQUIRE(eventually(std::chrono::seconds(30), [&] { return broker.ctl({"lspart"}).ok(); }));
  ProgramOptions options;
  options.arguments = {"-B",
                       MPSSHIM_SOURCE_DIR "/tests/process/check_answers.py",
                       built_program("mpsctl"),
                       broker.pipe_dir(),
                       MPSSHIM_SOURCE_DIR "/docs/service.md",
                       "--partitions"};
  const Outcome outcome = run_program(MPSSHIM_PYTHON, options);
  INFO(outcome.explain());
  CHECK(outcome.ok());
}

TEST_CASE("a command line that cannot be understood is one line with the word, and status 2") {
  const struct {
    const char* program;
    std::vector<std::string> words;
    const char* told;
  } cases[] = {
      {"mpsbroker", {"-f", "--workers", "many"}, "many"},
      {"mpsbroker", {"-f", "--workers"}, "--workers"},
      {"mpsbroker", {"-f", "--workers", ""}, "--workers: \"\" is no number"},
      {"mpsbroker", {"-f", "--executors", "9"}, "alue 9 not in range"},
      {"mpsbroker", {"-f", "--max-clients", "-1"}, "-1"},
      {"mpsbroker", {"-f", "--hang-ms", "99999999999999999999"}, "99999999999999999999"},
      {"mpsbroker", {"-f", "--no-such\x1b[31m"}, "--no-such\\x1b[31m"},
      {"mpsbroker", {"-f", "-d"}, "--daemon"},
      {"mpsbroker", {"-f", "--standby", "--no-standby"}, "--standby"},
      {"mpsbroker", {"serve"}, "serve"},
      {"mpsbroker", {"-nonsense"}, "-nonsense"},
      {"mpsbroker", {}, "-d"},
      {"mpsctl", {"--pipe-dir"}, "--pipe-dir"},
      {"mpsctl", {"--frob"}, "--frob"},
      {"mpsctl", {"--json=maybe", "ps"}, "maybe"},
      {"mpsctl", {""}, "empty"},
  };
  for (const auto& tried : cases) {
    ProgramOptions options;
    options.arguments = tried.words;
    options.environment = {{"CUDA_MPS_PIPE_DIRECTORY", "/nowhere/to/be/found"}};
    const Outcome outcome = run_program(built_program(tried.program), options, std::chrono::seconds(20));
    INFO(tried.program << ' ' << (tried.words.empty() ? "" : tried.words.back()) << ": " << outcome.explain());
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.output.empty());
    CHECK(outcome.errors.starts_with(std::string(tried.program) + ": "));
    CHECK(outcome.errors.find(tried.told) != std::string::npos);
    CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
  }
}
