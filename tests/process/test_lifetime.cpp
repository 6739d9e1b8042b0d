// SPDX-License-Identifier: Apache-2.0
// A broker as a service: it ends when it is told to and not before, and has ended when the command returns; its logs may be moved, and the disk may
// fill.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

ProgramOptions with(std::vector<std::string> arguments) {
  ProgramOptions options;
  options.arguments = std::move(arguments);
  options.without = {"CUDA_MPS_PIPE_DIRECTORY", "LD_PRELOAD"};
  return options;
}

Outcome start_daemon(const fs::path& pipe, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"-d", "--driver", test_driver(), "--pipe-dir", pipe, "--log-dir", pipe.string() + "-log"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_program(built_program("mpsbroker"), with(arguments));
}

Outcome control(const fs::path& pipe, std::vector<std::string> words) {
  words.insert(words.begin(), {"--pipe-dir", pipe});
  return run_program(built_program("mpsctl"), with(words));
}

pid_t holder(const fs::path& pipe) {
  pid_t pid = -1;
  std::ifstream(pipe / "mpsbroker.lock") >> pid;
  return pid;
}

// Every thread of it: SIGSTOP finds one that runs a moment later.
bool is_stopped(pid_t pid) {
  for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    const std::string stat = contents(task.path() / "stat");
    const std::size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || stat.compare(name_end + 1, 2, " T") != 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("many times: quit, and the next broker starts at once") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  const int rounds = on_gpu() ? 20 : 100;  // a real context takes its time
  for (int round = 0; round < rounds; ++round) {
    const Outcome started = start_daemon(pipe, {"--no-standby"});
    INFO(round << ": " << started.explain());
    REQUIRE(started.ok());
    const Outcome quit = control(pipe, {"quit"});
    INFO(quit.explain());
    REQUIRE(quit.ok());
  }
}

TEST_CASE("a broker that ends by a signal is waited for by the next one") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  for (int round = 0; round < 5; ++round) {
    const Outcome started = start_daemon(pipe);
    INFO(round << ": " << started.explain());
    REQUIRE(started.ok());
    ::kill(holder(pipe), SIGTERM);
    REQUIRE(eventually(std::chrono::seconds(10), [&] { return !fs::exists(pipe / "control.sock"); }));
  }
}

TEST_CASE("quit waits for its clients, and --now does not") {
  BrokerFixture broker;
  Client client(broker);
  ProgramOptions words = with({"--pipe-dir", broker.pipe_dir(), "quit"});
  Program quitter(built_program("mpsctl"), words);
  REQUIRE(
      eventually(std::chrono::seconds(10), [&] { return broker.log().find("The broker quits once its 1 client has left") != std::string::npos; }));
  CHECK(client.ask("hold") == "ok");  // it is served all the while
  sleep_briefly();
  CHECK(quitter.running());
  const Outcome now = broker.ctl({"quit", "--now"});
  INFO(now.explain());
  CHECK(now.ok());
  CHECK(quitter.wait(std::chrono::seconds(5)).ok());
  CHECK_FALSE(broker.process().running());
  CHECK(is_mps_error(client.ask("hold")));
}

TEST_CASE("quit -t gives clients so long") {
  BrokerFixture broker;
  Client client(broker);
  const Outcome quit = broker.ctl({"quit", "-t", "2"});
  INFO(quit.explain());
  CHECK(quit.ok());
  CHECK(quit.took >= std::chrono::seconds(2));
  CHECK(quit.took < std::chrono::seconds(8));
  CHECK_FALSE(broker.process().running());
}

// As systemd does it: the executors are told, too, and their end may be there to be seen when the signal is.
TEST_CASE("no executor is started once the broker ends, though its executors have the same signal") {
  for (int round = 0; round < 3; ++round) {
    BrokerFixture broker;
    const std::vector<pid_t> executors = broker.servers();
    REQUIRE(executors.size() == 1);
    ::kill(broker.process().pid(), SIGSTOP);
    REQUIRE(eventually(std::chrono::seconds(10), [&] { return is_stopped(broker.process().pid()); }));
    ::kill(executors[0], SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // its end comes first
    ::kill(broker.process().pid(), SIGTERM);
    ::kill(broker.process().pid(), SIGCONT);
    const Outcome& outcome = broker.process().wait(std::chrono::seconds(15));
    INFO(round << ": " << outcome.explain() << broker.log());
    REQUIRE(outcome.ok());
    const std::string log = outcome.errors;  // of one that is in the foreground, the control process's own lines
    const std::size_t start = log.find("Starting new server");
    REQUIRE(start != std::string::npos);
    REQUIRE(log.find("Starting new server", start + 1) == std::string::npos);
  }
}

TEST_CASE("a broker that is to end when idle stays for clients and holders, and then ends") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(start_daemon(pipe, {"--exit-when-idle", "1"}).ok());
  const pid_t pid = holder(pipe);
  Program holding("/bin/sleep", with({"60"}));
  REQUIRE(control(pipe, {"hold", std::to_string(holding.pid())}).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  CHECK(control(pipe, {"get_server_list"}).ok());
  CHECK(control(pipe, {"restart"}).ok());  // the next program keeps it for the holder, too
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  CHECK(control(pipe, {"get_server_list"}).ok());
  holding.send(SIGKILL);
  (void)holding.wait();
  CHECK(eventually(std::chrono::seconds(8), [&] { return ::kill(pid, 0) != 0; }));
  CHECK(contents(pipe.string() + "-log/control.log").find("Nobody has used this broker for 1 s") != std::string::npos);
  CHECK(control(pipe, {"hold", "1"}).exit_code == 2);
}

TEST_CASE("who cannot be seen cannot hold a broker, and need not where it stays anyway") {
  const std::string nobody = "4194305";  // beyond what a kernel gives
  const BrokerFixture stays;
  CHECK(stays.ctl({"hold", nobody}).ok());
  BrokerOptions options;
  options.arguments = {"--exit-when-idle", "60"};
  const BrokerFixture ends(options);
  const Outcome outcome = ends.ctl({"hold", nobody});
  INFO(outcome.explain());
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.errors.find("there is no process " + nobody) != std::string::npos);
}

TEST_CASE("SIGHUP and a moved log: lines go to the file that has the name") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  const fs::path logs = pipe.string() + "-log";
  REQUIRE(start_daemon(pipe).ok());
  for (const char* name : {"control.log", "server.log"}) fs::rename(logs / name, logs / (std::string(name) + ".1"));
  ::kill(holder(pipe), SIGHUP);
  CHECK(eventually(std::chrono::seconds(5), [&] { return contents(logs / "control.log").find("the logs are opened anew") != std::string::npos; }));
  CHECK(fs::exists(logs / "server.log"));
  CHECK(control(pipe, {"get_server_list"}).ok());
  const fs::path process = "/proc/" + std::to_string(holder(pipe));
  CHECK(fs::read_symlink(process / "fd/2") == logs / "server.log");
  const std::string moved = contents(logs / "server.log.1");
  CHECK(control(pipe, {"restart", "executors"}).ok());  // an executor's own lines, and those about it
  CHECK(contents(logs / "server.log").find("server status is INITIALIZING") != std::string::npos);
  CHECK(contents(logs / "server.log.1") == moved);
  CHECK(control(pipe, {"quit"}).ok());
}

TEST_CASE("a server keeps its number over its executor's death and over restarts, and old pids name it") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(start_daemon(pipe).ok());
  const std::string number = control(pipe, {"get_server_list"}).output;
  const auto pid_now = [&] {
    std::istringstream words(control(pipe, {"servers"}).output);
    std::string line;
    std::string first;
    pid_t pid = -1;
    std::getline(words, line);
    words >> first >> pid;
    return pid;
  };
  std::vector<pid_t> pids{pid_now()};
  CHECK(std::to_string(pids[0]) + "\n" == number);
  const auto is_active = [&](pid_t pid) { return control(pipe, {"get_server_status", std::to_string(pid)}).output == "ACTIVE\n"; };
  const auto has_changed = [&] { return pid_now() > 0 && pid_now() != pids.back() && is_active(pid_now()); };
  ::kill(pids[0], SIGKILL);
  REQUIRE(eventually(std::chrono::seconds(10), has_changed));
  pids.push_back(pid_now());
  for (const char* what : {"executors", ""}) {
    REQUIRE(control(pipe, *what != 0 ? std::vector<std::string>{"restart", what} : std::vector<std::string>{"restart"}).ok());
    REQUIRE(eventually(std::chrono::seconds(10), has_changed));
    pids.push_back(pid_now());
    CHECK(control(pipe, {"get_server_list"}).output == number);
  }
  for (const pid_t pid : pids) CHECK(is_active(pid));
  CHECK_FALSE(control(pipe, {"get_server_status", "1"}).ok());
  CHECK(control(pipe, {"quit"}).ok());
}

TEST_CASE("a full disk is told once on standard error, and the broker serves on") {
  if (geteuid() != 0) MPSSHIM_SKIP("needs root, to make a small file system");
  const TemporaryFolder folder;
  const fs::path small = folder.path() / "small";
  fs::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=16k") != 0) MPSSHIM_SKIP("no file system can be mounted here");
  {
    ProgramOptions options = with({"-f", "--driver", test_driver(), "--pipe-dir", folder.path() / "pipe", "--log-dir", small, "--verbose"});
    Program broker(built_program("mpsbroker"), options);
    CHECK(eventually(std::chrono::seconds(30), [&] { return control(folder.path() / "pipe", {"get_server_list"}).ok() || !broker.running(); }));
    std::ofstream(small / "rest") << std::string(64 << 10, 'x');
    for (int i = 0; i < 400; ++i) (void)::kill(broker.pid(), SIGHUP), sleep_briefly();
    CHECK(control(folder.path() / "pipe", {"get_server_list"}).ok());
    const auto times = [&](const std::string& what) {
      const std::string text = broker.errors();
      int count = 0;
      for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
      return count;
    };
    CHECK(times("control.log cannot be written (No space left on device): lines are lost until it can") == 1);
    fs::remove(small / "rest");
    ::kill(broker.pid(), SIGHUP);
    CHECK(eventually(std::chrono::seconds(5),
                     [&] { return contents(small / "control.log").find("before this one could not be written") != std::string::npos; }));
    CHECK(control(folder.path() / "pipe", {"quit"}).ok());
  }
  umount2(small.c_str(), MNT_DETACH);
}

TEST_CASE("a driver that cannot be loaded is told with the loader's words, and status 1") {
  const TemporaryFolder folder;
  const Outcome outcome =
      run_program(built_program("mpsbroker"), with({"-d", "--driver", "/nonexistent/libcuda.so.1", "--pipe-dir", folder.path() / "pipe"}));
  INFO(outcome.explain());
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.errors.find("/nonexistent/libcuda.so.1: cannot open shared object file: No such file or directory") != std::string::npos);
}
