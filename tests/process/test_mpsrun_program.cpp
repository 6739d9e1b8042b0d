// SPDX-License-Identifier: Apache-2.0
// What a program gets of the mpsrun that starts it, and gives back: exit status, signals, what the loader reads, shares; else it does not notice it.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/process/mpsrun.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

TEST_CASE("mpsrun passes on exit status, input and the end by a signal") {
  const TemporaryFolder folder;
  REQUIRE(run_program(built_program("mpsrun"), mpsrun(folder, {"/bin/sh", "-c", "exit 37"})).exit_code == 37);
  REQUIRE(run_program(built_program("mpsrun"), mpsrun(folder, {"/bin/sh", "-c", "kill -KILL $$"})).signal == SIGKILL);
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

TEST_CASE("mpsrun gives a program its share of memory, and its rank's device") {
  const BrokerFixture broker;
  const auto run = [&](std::vector<std::string> words, std::map<std::string, std::string> environment = {}) {
    ProgramOptions options = beside(broker);
    options.arguments.pop_back();
    options.arguments.insert(options.arguments.end(), words.begin(), words.end());
    options.environment = std::move(environment);
    options.without = {"CUDA_VISIBLE_DEVICES", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "LD_PRELOAD"};
    return run_program(built_program("mpsrun"), options);
  };
  const std::string shell = "echo \"$CUDA_VISIBLE_DEVICES $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\"";
  const std::vector<std::string> show = {"/bin/sh", "-c", shell};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), show.begin(), show.end());
    return words;
  };
  CHECK(run(show).output == " \n");
  CHECK(run(with({"--mem", "1G", "--device=0"})).output == "0 all=1G\n");
  CHECK(run(with({"--mem=1G"}), {{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2G"}}).output == " 0=2G,all=1G\n");
  CHECK(run(with({"--gpu-share", "30%"})).output == " 30.0\n");
  CHECK(run(with({"--gpu-share=30"}), {{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "12.5"}}).output == " 12.5\n");
  CHECK(run({"--sm-partition", "0/P0000001", "/bin/sh", "-c", "echo $CUDA_MPS_SM_PARTITION"}).output == "0/P0000001\n");
  CHECK(run({"--latency", "saving", "/bin/sh", "-c", "echo $MPSSHIM_LATENCY"}).output == "saving\n");
  CHECK(run({"--group", "batch_1", "/bin/sh", "-c", "echo $MPSSHIM_GROUP"}).output == "batch_1\n");
  CHECK(run(with({"--device", "local"}), {{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}}).output == "0 \n");  // the CPU driver has one
  CHECK(run(with({"--device", "local"}), {{"SLURM_LOCALID", "1"}, {"CUDA_VISIBLE_DEVICES", "5,6"}}).output == "6 \n");

  const std::pair<std::vector<std::string>, std::string> wrong[] = {{{"--mem", "lots"}, "--mem lots is no size"},
                                                                    {{"--gpu-share", "a-third"}, "--gpu-share a-third is no percentage"},
                                                                    {{"--latency", "quick"}, "--latency quick is none of low, balanced and saving"},
                                                                    {{"--group", "Batch"}, "--group Batch is no name of a group"},
                                                                    {{"--sm-partition", "P0000001"}, "--sm-partition P0000001 is no partition"},
                                                                    {{"--device", "x"}, "--device x is no device"},
                                                                    {{"--device", "local"}, "no launcher has said"}};
  for (const auto& [words, told] : wrong) {
    const Outcome outcome = run(with(words));
    INFO(outcome.explain());
    CHECK(outcome.exit_code == 125);
    CHECK(outcome.output.empty());
    CHECK(outcome.errors.find(told) != std::string::npos);
    CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
  }
}
