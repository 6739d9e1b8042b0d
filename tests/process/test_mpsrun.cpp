// SPDX-License-Identifier: Apache-2.0
// mpsrun starts a broker where there is none, which ends by itself, and is otherwise not noticed by its program.
// Longer than other sources: a case for each thing that its user may notice.
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

// mpsrun's arguments for a program beside a broker that is there.
ProgramOptions beside(const BrokerFixture& broker) {
  ProgramOptions options;
  options.arguments = {"--pipe-dir", broker.pipe_dir(), built_program("process2")};
  options.environment = sanitizer_environment();
  options.without = {"LD_PRELOAD"};
  return options;
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
  CHECK(run({"--group", "batch_1", "/bin/sh", "-c", "echo $MPSSHIM_GROUP"}).output == "batch_1\n");
  CHECK(run(with({"--device", "local"}), {{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}}).output == "0 \n");  // the CPU driver has one
  CHECK(run(with({"--device", "local"}), {{"SLURM_LOCALID", "1"}, {"CUDA_VISIBLE_DEVICES", "5,6"}}).output == "6 \n");

  const std::pair<std::vector<std::string>, std::string> wrong[] = {{{"--mem", "lots"}, "--mem lots is no size"},
                                                                    {{"--gpu-share", "a-third"}, "--gpu-share a-third is no percentage"},
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
