// SPDX-License-Identifier: Apache-2.0
// mpsrun starts a broker where there is none, which ends by itself, and says what it cannot do. What its program gets of it: test_mpsrun_program.cpp.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/process/mpsrun.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kEnd{10};

// All whose command line names the folder, but for this test.
std::vector<std::string> processes_of(const TemporaryFolder& folder) {
  std::vector<std::string> found;
  for (const auto& process : fs::directory_iterator("/proc")) {
    const std::string name = process.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos || name == std::to_string(getpid())) continue;
    std::ifstream file(process.path() / "cmdline");
    std::ostringstream text;  // a stream that takes errors: the process may be gone by now
    text << file.rdbuf();
    const std::string line = text.str();
    if (line.find(folder.path().string()) != std::string::npos) found.push_back(name + ": " + line);
  }
  return found;
}

bool broker_answers(const TemporaryFolder& folder) {
  ProgramOptions options;
  options.arguments = {"--pipe-dir", folder.path() / "pipe", "get_server_list"};
  return run_program(built_program("mpsctl"), options, std::chrono::seconds(10)).ok();
}

}  // namespace

TEST_CASE("mpsrun starts a broker, which ends after the program") {
  const TemporaryFolder folder;
  const Outcome outcome = run_program(built_program("mpsrun"), mpsrun(folder, {built_program("process1")}));
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  REQUIRE(outcome.output.find("Process 1 done.") != std::string::npos);
  REQUIRE(broker_answers(folder));  // for whoever comes within --idle
  REQUIRE(eventually(kEnd, [&] { return processes_of(folder).empty(); }));
}

TEST_CASE("mpsrun leaves a broker that it did not start") {
  BrokerFixture broker;
  const ProgramOptions options = beside(broker);
  const Outcome outcome = run_program(built_program("mpsrun"), options);
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
  REQUIRE(broker.process().running());
  REQUIRE(broker.ctl({"get_server_list"}).ok());
}

TEST_CASE("several mpsruns at once share one broker, which ends after the last") {
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
  REQUIRE(eventually(kEnd, [&] { return processes_of(folder).empty(); }));
  std::ifstream log(folder.path() / "pipe/log/control.log");
  const std::string text{std::istreambuf_iterator<char>(log), {}};
  CHECK(text.find(" serves uid ") != std::string::npos);
  CHECK(text.find(" serves uid ") == text.rfind(" serves uid "));
}

TEST_CASE("a broker stays as long as a program of mpsrun does, whatever that keeps open, and no longer") {
  const TemporaryFolder folder;
  // It attaches late, and has closed all that a program could inherit.
  Program program(built_program("mpsrun"),
                  mpsrun(folder, {"/bin/bash", "-c", "exec 3>&- 4>&- 5>&- 6>&- 7>&-; sleep 5; " + built_program("process1")}));
  const Outcome& outcome = program.wait(std::chrono::seconds(60));
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  Program killed(built_program("mpsrun"), mpsrun(folder, {"/bin/sh", "-c", "echo there; exec sleep 60"}));
  REQUIRE(killed.wait_for_output("there", std::chrono::seconds(20)));
  killed.send(SIGKILL);
  CHECK(killed.wait().signal == SIGKILL);
  CHECK(killed.errors().empty());
  REQUIRE(eventually(kEnd, [&] { return processes_of(folder).empty(); }));
}

// Its pid means somebody else there, who might live for ever.
TEST_CASE("an mpsrun in a pid namespace of its own holds the broker that is there, until it ends") {
  if (geteuid() != 0) MPSSHIM_SKIP("needs root, to make a pid namespace");
  const TemporaryFolder folder;
  Program outside(built_program("mpsrun"), mpsrun(folder, {"/bin/sh", "-c", "echo there; sleep 3"}));
  REQUIRE(outside.wait_for_output("there", std::chrono::seconds(30)));
  ProgramOptions options = mpsrun(folder, {"/bin/sh", "-c", "sleep 7; " + built_program("process1")});
  options.arguments.insert(options.arguments.begin(), {"--pid", "--fork", built_program("mpsrun")});
  const Outcome inside = run_program("/usr/bin/unshare", options, std::chrono::seconds(60));
  INFO(inside.explain());
  CHECK(inside.ok());
  CHECK(inside.output.find("Process 1 done.") != std::string::npos);
  CHECK(outside.wait().ok());
  CHECK(eventually(kEnd, [&] { return processes_of(folder).empty(); }));
}

// An MPICH job that failed hung for ever on the socket that its first rank had from the launcher.
TEST_CASE("a broker that mpsrun starts keeps nothing of its first program") {
  const TemporaryFolder folder;
  ProgramOptions options = mpsrun(folder, {"/bin/sh", "-c", "echo there; exec sleep 60"});
  options.environment["OF_A_LAUNCHER"] = "17";
  options.environment["CUDA_VISIBLE_DEVICES"] = "0";
  options.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "10";
  // With a descriptor that is not close-on-exec, in a directory of its own.
  const std::string script = "cd " + folder.path().string() + "; exec 9>kept; exec " + built_program("mpsrun") + " \"$@\"";
  options.arguments.insert(options.arguments.begin(), {"-c", script, "sh"});
  Program program("/bin/bash", options);
  REQUIRE(program.wait_for_output("there", std::chrono::seconds(30)));
  pid_t broker = -1;
  std::ifstream(folder.path() / "pipe/mpsbroker.lock") >> broker;
  REQUIRE(broker > 0);
  const fs::path process = "/proc/" + std::to_string(broker);
  CHECK(fs::read_symlink(process / "cwd") == "/");
  CHECK(fs::read_symlink(process / "fd/0") == "/dev/null");
  for (const auto& entry : fs::directory_iterator(process / "fd")) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry.path(), error).string();
    INFO(target);
    CHECK(target.find("kept") == std::string::npos);
    CHECK_FALSE(target.starts_with("/memfd:output"));  // the test's own, as its standard output
    CHECK_FALSE(target.starts_with("/memfd:errors"));
  }
  std::ifstream file(process / "environ");
  const std::string environment{std::istreambuf_iterator<char>(file), {}};
  for (const char* name : {"OF_A_LAUNCHER", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "LD_PRELOAD", "MPSSHIM_REQUIRE"}) {
    INFO(name);
    CHECK(environment.find(std::string(name) + "=") == std::string::npos);
  }
  CHECK(environment.find("PATH=") != std::string::npos);
}

TEST_CASE("mpsrun beside a broker of root's for all users writes nothing") {
  if (geteuid() != 0) MPSSHIM_SKIP("needs root, to have another user");
  BrokerOptions multi;
  multi.arguments = {"--multiuser-server"};
  const BrokerFixture broker(multi);
  fs::permissions(broker.pipe_dir().parent_path(), fs::perms(0755));
  fs::permissions(broker.pipe_dir(), fs::perms(0755));
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(broker.pipe_dir())) all.insert(entry.path());
    return all;
  };
  const std::set<std::string> before = names();
  ProgramOptions options = beside(broker);
  options.user = 65534;
  const Outcome outcome = run_program(built_program("mpsrun"), options);
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
  CHECK(outcome.errors.empty());
  CHECK(names() == before);
}

TEST_CASE("what mpsrun cannot do is one line that names it") {
  const TemporaryFolder folder;
  struct Row {
    std::vector<std::string> arguments;
    int status;
    std::string says;
  };
  const std::vector<Row> rows = {{{"--driver="}, 125, "--driver needs a value"},
                                 {{"--pipe-dir"}, 125, "--pipe-dir needs a value"},
                                 {{"--pipe-dir", ""}, 125, "--pipe-dir needs a value"},
                                 {{"--idle", "-1", "true"}, 125, "--idle -1 is not a number"},
                                 {{"--frob", "true"}, 125, "unknown option --frob"},
                                 {{""}, 127, "the program's name is empty"},
                                 {{"--job"}, 125, "this is no batch job"}};
  for (const Row& row : rows) {
    ProgramOptions options;
    options.arguments = row.arguments;
    options.without = {"CUDA_MPS_PIPE_DIRECTORY", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID"};
    const Outcome outcome = run_program(built_program("mpsrun"), options);
    INFO(row.says << ": " << outcome.explain());
    CHECK(outcome.exit_code == row.status);
    CHECK(outcome.errors.find(row.says) != std::string::npos);
    CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
  }
  CHECK(run_program(built_program("mpsrun"), mpsrun(folder, {"/nonexistent/program"})).exit_code == 127);
  CHECK(run_program(built_program("mpsrun"), mpsrun(folder, {"/etc/passwd"})).exit_code == 126);
}

TEST_CASE("mpsrun whose broker cannot start says so and runs nothing") {
  const TemporaryFolder folder;
  ProgramOptions options = mpsrun(folder, {"/bin/sh", "-c", "echo it ran"});
  options.arguments[1] = "/nonexistent/libcuda.so";
  const Outcome outcome = run_program(built_program("mpsrun"), options);
  INFO(outcome.explain());
  REQUIRE(outcome.exit_code == 125);
  REQUIRE(outcome.output.empty());
  REQUIRE(outcome.errors.find("mpsrun: the broker ended at its start") != std::string::npos);
}
