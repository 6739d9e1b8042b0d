// SPDX-License-Identifier: Apache-2.0
// mpsrun starts a broker where there is none, stops what it started, and is otherwise not noticed by its program.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

ProgramOptions mpsrun(const TemporaryFolder& folder, std::vector<std::string> command) {
  ProgramOptions options;
  options.arguments = {"--driver", test_driver(), "--"};
  options.arguments.insert(options.arguments.end(), command.begin(), command.end());
  options.environment = sanitizer_environment();
  options.environment["CUDA_MPS_PIPE_DIRECTORY"] = folder.path() / "pipe";
  options.without = {"LD_PRELOAD", "MPSSHIM_REQUIRE", "MPSSHIM_DISABLE"};
  return options;
}

bool broker_answers(const TemporaryFolder& folder) {
  ProgramOptions options;
  options.arguments = {"--pipe-dir", folder.path() / "pipe", "get_server_list"};
  return run_program(built_program("mpsctl"), options, std::chrono::seconds(10)).ok();
}

}  // namespace

TEST_CASE("mpsrun starts a broker and stops it after the program") {
  const TemporaryFolder folder;
  const Outcome outcome = run_program(built_program("mpsrun"), mpsrun(folder, {built_program("process1")}));
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  REQUIRE(outcome.output.find("Process 1 done.") != std::string::npos);
  REQUIRE_FALSE(broker_answers(folder));
}

TEST_CASE("mpsrun leaves a broker that it did not start") {
  BrokerFixture broker;
  ProgramOptions options;
  options.arguments = {"--pipe-dir", broker.pipe_dir(), built_program("process2")};
  options.environment = sanitizer_environment();
  options.without = {"LD_PRELOAD"};
  const Outcome outcome = run_program(built_program("mpsrun"), options);
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
  REQUIRE(broker.process().running());
  REQUIRE(broker.ctl({"get_server_list"}).ok());
}

TEST_CASE("several mpsruns at once share one broker, and the last stops it") {
  const TemporaryFolder folder;
  std::vector<Program> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back(built_program("mpsrun"), mpsrun(folder, {built_program("process1"), std::to_string(1 + rank)}));
  }
  for (Program& rank : ranks) {
    const Outcome& outcome = rank.wait(std::chrono::seconds(90));
    INFO(outcome.explain());
    REQUIRE(outcome.ok());
  }
  REQUIRE_FALSE(broker_answers(folder));
}

TEST_CASE("mpsrun passes on exit status, input and the end by a signal") {
  const TemporaryFolder folder;
  REQUIRE(run_program(built_program("mpsrun"), mpsrun(folder, {"/bin/sh", "-c", "exit 37"})).exit_code == 37);
  REQUIRE(run_program(built_program("mpsrun"), mpsrun(folder, {"/bin/sh", "-c", "kill -KILL $$"})).exit_code == 128 + SIGKILL);
  ProgramOptions with_input = mpsrun(folder, {"/bin/cat"});
  with_input.input = "from standard input\n";
  REQUIRE(run_program(built_program("mpsrun"), with_input).output == "from standard input\n");
}

TEST_CASE("mpsrun passes signals on") {
  const TemporaryFolder folder;
  for (const auto& [name, number] : {std::pair("TERM", SIGTERM), std::pair("INT", SIGINT), std::pair("USR1", SIGUSR1)}) {
    const std::string script = std::string("trap 'echo caught; exit 9' ") + name + "; echo ready; while :; do sleep 0.05; done";
    Program program(built_program("mpsrun"), mpsrun(folder, {"/bin/sh", "-c", script}));
    REQUIRE(program.wait_for_output("ready", std::chrono::seconds(40)));
    program.send(number);
    const Outcome& outcome = program.wait(std::chrono::seconds(20));
    INFO(name << ": " << outcome.explain());
    REQUIRE(outcome.exit_code == 9);
    REQUIRE(outcome.output.find("caught") != std::string::npos);
  }
}

TEST_CASE("mpsrun keeps what is in LD_PRELOAD") {
  const TemporaryFolder folder;
  ProgramOptions options = mpsrun(folder, {"/bin/sh", "-c", "echo $LD_PRELOAD"});
  std::string& preload = options.environment["LD_PRELOAD"];
  preload += (preload.empty() ? "" : ":") + std::string("libc.so.6");
  const std::string expected = preload + ":" + built_library("libmpsshim.so") + "\n";
  const Outcome outcome = run_program(built_program("mpsrun"), options);
  INFO(outcome.explain());
  REQUIRE(outcome.output == expected);
}

TEST_CASE("mpsrun puts the driver's folder in front of LD_LIBRARY_PATH, once") {
  const TemporaryFolder folder;
  const std::string ours = built_library("libcuda");
  REQUIRE(std::filesystem::canonical(ours + "/libcuda.so") == std::filesystem::canonical(built_library("libmpsshim.so")));
  REQUIRE(std::filesystem::canonical(ours + "/libcuda.so.1") == std::filesystem::canonical(built_library("libmpsshim.so")));
  struct Row {
    std::string before;
    std::string after;
  };
  const std::vector<Row> rows = {{"", ours},
                                 {"/a", ours + ":/a"},
                                 {"/a:/b", ours + ":/a:/b"},
                                 {":/a:", ours + "::/a:"},  // empty entries are the working directory
                                 {ours, ours},
                                 {ours + ":/a", ours + ":/a"},
                                 {"/a:" + ours + ":" + ours + ":/b", ours + ":/a:/b"},
                                 {ours + "/b:/a", ours + ":" + ours + "/b:/a"}};
  for (const Row& row : rows) {
    ProgramOptions options = mpsrun(folder, {"/bin/sh", "-c", "echo \"$LD_LIBRARY_PATH\""});
    options.environment["LD_LIBRARY_PATH"] = row.before;
    const Outcome outcome = run_program(built_program("mpsrun"), options);
    INFO(row.before << ": " << outcome.explain());
    CHECK(outcome.output == row.after + "\n");
  }
  ProgramOptions options = mpsrun(folder, {"/bin/sh", "-c", "echo \"$LD_LIBRARY_PATH\""});
  options.without.push_back("LD_LIBRARY_PATH");
  CHECK(run_program(built_program("mpsrun"), options).output == ours + "\n");
}

TEST_CASE("an mpsrun in an mpsrun sets nothing twice, and its broker finds a driver") {
  const TemporaryFolder folder;
  const TemporaryFolder inner;
  const std::string nested = built_program("mpsrun") + " --pipe-dir " + inner.path().string() + " --driver " + test_driver() + " -- ";
  const std::string script = "echo \"$LD_PRELOAD $LD_LIBRARY_PATH\"; " + nested + "/bin/sh -c 'echo \"$LD_PRELOAD $LD_LIBRARY_PATH\"' && " + nested +
                             built_program("process1");
  const Outcome outcome = run_program(built_program("mpsrun"), mpsrun(folder, {"/bin/sh", "-c", script}));
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  const std::size_t line = outcome.output.find('\n') + 1;
  CHECK(outcome.output.compare(0, line, outcome.output, line, line) == 0);
  CHECK(outcome.output.substr(2 * line) == "Process 1 done.\n");
}

// A program that is started without LD_PRELOAD asks the loader for the driver by name.
TEST_CASE("what mpsrun starts reaches the broker without LD_PRELOAD as well") {
  if (!sanitizer_environment().empty()) MPSSHIM_SKIP("a library with a sanitizer is loaded by LD_PRELOAD alone");
  const TemporaryFolder folder;
  const Outcome outcome =
      run_program(built_program("mpsrun"), mpsrun(folder, {"/usr/bin/env", "-u", "LD_PRELOAD", "MPSSHIM_DEBUG=settle", built_program("process1")}));
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  CHECK(outcome.errors.find("Attached to the broker at " + folder.path().string()) != std::string::npos);
}

TEST_CASE("mpsrun whose broker cannot start says so and runs nothing") {
  const TemporaryFolder folder;
  ProgramOptions options = mpsrun(folder, {"/bin/sh", "-c", "echo it ran"});
  options.arguments[1] = "/nonexistent/libcuda.so";
  const Outcome outcome = run_program(built_program("mpsrun"), options);
  INFO(outcome.explain());
  REQUIRE(outcome.exit_code == 125);
  REQUIRE(outcome.output.empty());
  REQUIRE(outcome.errors.find("mpsrun: the broker") != std::string::npos);
}
