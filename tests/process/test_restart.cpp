// SPDX-License-Identifier: Apache-2.0
// mpsctl restart: new executors, and the installed mpsbroker in place of the running one, under clients that notice a short wait.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

pid_t executor_of(const BrokerFixture& broker) {
  const std::vector<pid_t> servers = broker.servers();
  INFO(broker.log());
  REQUIRE(servers.size() == 1);
  return servers.front();
}

void require_ok(Client& client, const std::string& command, const BrokerFixture& broker) {
  const std::string answer = client.ask(command);
  INFO(command << ": " << answer << "\n" << client.program().errors() << broker.log());
  REQUIRE(answer.rfind("ok", 0) == 0);
}

void require_done(const Outcome& outcome, const BrokerFixture& broker) {
  INFO(outcome.explain() << broker.log());
  REQUIRE(outcome.ok());
}

void require_newcomers_are_served(const BrokerFixture& broker) {
  const Outcome newcomer = broker.run("vector_add_drv", std::vector<std::string>{});
  INFO(newcomer.explain() << broker.log());
  REQUIRE(newcomer.ok());
}

// The numbers of those of whom a line of the log says so.
std::set<int> sessions_with(const std::string& what, const std::string& log) {
  std::set<int> found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t name = line.find("] Session ");
    if (name != std::string::npos && line.find(what) != std::string::npos) found.insert(std::atoi(line.c_str() + name + 10));
  }
  return found;
}

}  // namespace

TEST_CASE("restart executors: idle and busy clients go on in new ones") {
  const BrokerFixture broker;
  Client idle(broker), busy(broker);
  require_ok(idle, "hold", broker);
  for (int turn = 0; turn < 3; ++turn) {
    const pid_t before = executor_of(broker);
    busy.begin("storm 1500");
    for (int i = 0; i < 10; ++i) sleep_briefly();
    require_done(broker.ctl({"restart", "executors"}), broker);
    REQUIRE(executor_of(broker) != before);
    require_ok(idle, "check", broker);
    require_ok(idle, "use", broker);
    const std::string answer = busy.answer();
    INFO(answer << busy.program().errors() << broker.log());
    REQUIRE(answer.rfind("ok ", 0) == 0);
  }
  require_newcomers_are_served(broker);
}

TEST_CASE("a linker that is not complete goes on in the next executor") {
  const BrokerFixture broker;
  Client linking(broker, "modules_client"), giving_up(broker, "modules_client");
  for (const bool is_killed : {false, true}) {
    require_ok(linking, "link", broker);
    require_ok(giving_up, "link", broker);
    const pid_t before = executor_of(broker);
    if (is_killed) {
      ::kill(before, SIGKILL);
    } else {
      require_done(broker.ctl({"restart", "executors"}), broker);
    }
    require_ok(giving_up, "unlink", broker);
    require_ok(giving_up, "plain", broker);  // what the next executor never knew is no error of a later call
    require_ok(linking, "linked", broker);
    require_ok(linking, "unlink", broker);
    REQUIRE(executor_of(broker) != before);
  }
}

TEST_CASE("who does not come to rest stands in the way of a restart, unless forced") {
  const BrokerFixture broker;
  Client spinning(broker), idle(broker);
  require_ok(idle, "hold", broker);
  require_ok(spinning, "spin", broker);
  const pid_t before = executor_of(broker);
  const Outcome refused = broker.ctl({"restart", "-t", "1", "executors"});
  INFO(refused.explain() << broker.log());
  REQUIRE(refused.exit_code == 1);
  REQUIRE(refused.errors.find("nothing was changed: Session 1") != std::string::npos);
  REQUIRE(executor_of(broker) == before);
  require_ok(idle, "use", broker);
  require_newcomers_are_served(broker);
  require_done(broker.ctl({"restart", "-f", "-t", "1", "executors"}), broker);
  require_ok(idle, "check", broker);
  REQUIRE(is_mps_error(spinning.ask("storm 50")));
}

TEST_CASE("a restart that is refused fails nobody's call") {
  const BrokerFixture broker;
  Client spinning(broker), loading(broker);
  require_ok(loading, "hold", broker);
  require_ok(spinning, "spin", broker);
  loading.begin("image other_ptx");  // waits for a quiet window, and then for another executor
  const Outcome refused = broker.ctl({"restart", "-t", "1", "executors"});
  INFO(refused.explain() << broker.log());
  REQUIRE(refused.exit_code == 1);
  const std::string answer = loading.answer();
  INFO(answer << loading.program().errors());
  REQUIRE(answer.rfind("ok", 0) == 0);
  require_ok(loading, "check", broker);
}

namespace {

// An mpsbroker installed in a folder of its own, so that another can be installed over it.
class Installed {
 public:
  Installed() { install(); }
  [[nodiscard]] std::string path() const { return folder_.path() / "mpsbroker"; }
  void install() const {
    std::filesystem::copy_file(built_program("mpsbroker"), folder_.path() / "next");
    std::filesystem::rename(folder_.path() / "next", path());  // the running one keeps its file
  }
  void install_script(const std::string& text) const {
    std::ofstream(folder_.path() / "next") << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(folder_.path() / "next", std::filesystem::perms::owner_all);
    std::filesystem::rename(folder_.path() / "next", path());
  }
  [[nodiscard]] BrokerOptions options(std::vector<std::string> more = {}) const {
    BrokerOptions options;
    options.program = path();
    options.driver = on_gpu() ? test_driver() : built_library("libcuda_cpu.so");
    options.arguments = std::move(more);
    return options;
  }

 private:
  TemporaryFolder folder_;
};

std::filesystem::path program_of(pid_t pid) { return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe"); }

// A client's memory for copies grows with use, whatever happens to the broker.
Resources without_copy_memory(Resources resources) {
  resources.fds -= static_cast<int>(
      std::erase_if(resources.fd_targets, [](const std::string& target) { return target.find("mpsshim-pinned") != std::string::npos; }));
  return resources;
}

void require_refused(const BrokerFixture& broker, const std::string& why) {
  const Outcome refused = broker.ctl({"restart"});
  INFO(refused.explain() << broker.log());
  REQUIRE(refused.exit_code == 1);
  REQUIRE(refused.errors.find(why) != std::string::npos);
}

}  // namespace

TEST_CASE("restart: the installed mpsbroker takes over in the same process, clients idle, busy and new go on") {
  const Installed installed;
  BrokerFixture broker(installed.options());
  Client idle(broker), busy(broker);
  require_ok(idle, "hold", broker);
  const pid_t pid = broker.process().pid();
  for (int turn = 0; turn < 3; ++turn) {
    const pid_t executor = executor_of(broker);
    installed.install();
    REQUIRE(program_of(pid).string().ends_with(" (deleted)"));
    busy.begin("storm 2000");
    for (int i = 0; i < 10; ++i) sleep_briefly();
    require_done(broker.ctl({"restart"}), broker);
    REQUIRE(program_of(pid) == installed.path());
    REQUIRE(executor_of(broker) != executor);
    require_ok(idle, "check", broker);
    require_ok(idle, "use", broker);
    require_ok(idle, "pin", broker);
    const std::string answer = busy.answer();
    INFO(answer << busy.program().errors() << broker.log());
    REQUIRE(answer.rfind("ok ", 0) == 0);
    require_newcomers_are_served(broker);
  }
  idle.program().send(SIGKILL);
  REQUIRE(idle.program().wait().signal == SIGKILL);
  REQUIRE(broker.wait_for_clients(1));  // deaths are noticed as before
}

TEST_CASE("nothing is left behind by a restart") {
  const Installed installed;
  BrokerFixture broker(installed.options());
  Client idle(broker);
  require_ok(idle, "hold", broker);
  require_done(broker.ctl({"restart"}), broker);
  require_ok(idle, "use", broker);
  const Resources before = without_copy_memory(broker.settled_resources());
  for (int turn = 0; turn < 3; ++turn) {
    require_done(broker.ctl({"restart"}), broker);
    require_ok(idle, "use", broker);
  }
  Resources after;
  const bool settled = eventually(std::chrono::seconds(10), [&] { return (after = without_copy_memory(broker.resources())).is_within(before); });
  INFO("before: " << before.explain() << "after: " << after.explain() << broker.log());
  REQUIRE(settled);
}

TEST_CASE("nor is anything of the spare process that waits beside several clients") {
  const Installed installed;
  BrokerFixture broker(installed.options());
  Client one(broker), other(broker);
  const auto await_spare = [&](std::size_t count) {
    const auto is_there = [&] {
      std::size_t found = 0;
      const std::string log = broker.log();
      for (auto at = log.find("Executor 0.1: a standby (pid"); at != std::string::npos; at = log.find("Executor 0.1: a standby (pid", at + 1))
        ++found;
      return found >= count;
    };
    INFO(broker.log());
    REQUIRE(eventually(std::chrono::seconds(20), is_there));
  };
  require_ok(one, "hold", broker);
  require_ok(other, "hold", broker);
  await_spare(1);
  const int before = broker.settled_resources().processes;
  for (std::size_t turn = 1; turn <= 2; ++turn) {
    require_done(broker.ctl({"restart"}), broker);
    require_ok(one, "use", broker);
    require_ok(other, "use", broker);
    await_spare(1 + turn);
  }
  const bool settled = eventually(std::chrono::seconds(10), [&] { return broker.resources().processes <= before; });
  INFO(broker.resources().explain() << broker.log());
  REQUIRE(settled);
}

TEST_CASE("clients that die while a restart is under way leave no session behind") {
  BrokerFixture broker;
  const pid_t control = broker.process().pid();
  const int turns = on_gpu() ? 8 : 40;  // there a start takes seconds
  for (int turn = 0; turn < turns; ++turn) {
    std::vector<Client> clients;
    for (int i = 0; i < 4; ++i) clients.emplace_back(broker);
    ProgramOptions order;
    order.arguments = {"--pipe-dir", broker.pipe_dir(), "restart"};
    Program restart(built_program("mpsctl"), order);
    // Somewhere on the way the control process stands still while its executor ends, if it has been told to, and its clients do.
    usleep(static_cast<useconds_t>(turn * 20'000 / turns));
    kill(control, SIGSTOP);
    usleep(10'000);
    for (Client& client : clients) client.program().send(SIGKILL);
    for (Client& client : clients) (void)client.program().wait();
    kill(control, SIGCONT);
    INFO("turn " << turn << "\n" << broker.log());
    require_done(restart.wait(), broker);
    REQUIRE(broker.wait_for_clients(0));
    REQUIRE(eventually(std::chrono::seconds(5),
                       [&] { return sessions_with(": ended.", broker.log()) == sessions_with(": attached in ", broker.log()); }));
  }
}

TEST_CASE("a program that cannot take over changes nothing") {
  const Installed installed;
  const BrokerFixture broker(installed.options());
  Client idle(broker);
  require_ok(idle, "hold", broker);
  const pid_t executor = executor_of(broker);
  installed.install_script("echo handover 17 18");
  require_refused(broker, "reads hand-overs of versions 17 to 18, this broker writes 16");
  installed.install_script("exit 0");
  require_refused(broker, "is no mpsbroker that can take over");
  std::filesystem::remove(installed.path());
  require_refused(broker, "is no mpsbroker that can take over");
  REQUIRE(executor_of(broker) == executor);
  require_ok(idle, "check", broker);
}

TEST_CASE("a program that fails while it takes over gives all back to the former one") {
  const Installed installed;
  BrokerFixture broker(installed.options());
  Client idle(broker);
  require_ok(idle, "hold", broker);
  installed.install_script("exec " + built_program("mpsbroker") + " \"$@\" --window 0x100000000000-0x180000000000");
  require_refused(broker, "the former broker goes on");
  require_ok(idle, "check", broker);
  require_ok(idle, "use", broker);
  REQUIRE(program_of(broker.process().pid()).string().ends_with("mpsbroker (deleted)"));
  installed.install();
  require_done(broker.ctl({"restart"}), broker);
  require_ok(idle, "check", broker);
}
