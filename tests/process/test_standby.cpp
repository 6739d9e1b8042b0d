// SPDX-License-Identifier: Apache-2.0
// A standby takes over when the executor ends, and another one comes after it: a cold one by default, a warm one with --standby. On a GPU that takes
// one process at a time (the CPU driver plays one) a warm one is cold, too, a restart waits for the old context's end, and there is no second
// executor.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <iomanip>
#include <regex>
#include <sstream>
#include <string>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

BrokerOptions with_standby(std::vector<std::string> more = {}) {
  BrokerOptions options;
  options.arguments = {"--standby"};
  options.arguments.insert(options.arguments.end(), more.begin(), more.end());
  return options;
}

// A warm one, or the cold one that waits where nothing else was asked for.
BrokerOptions with_either_standby() { return GENERATE(true, false) ? with_standby() : BrokerOptions(); }

// The pid of the latest standby, which is not `not_this`. Each line of the log is there twice, in the broker's output and in the file.
pid_t standby(const BrokerFixture& broker, pid_t not_this = -1) {
  const std::string words = "a standby (pid ";
  pid_t pid = -1;
  const bool came = eventually(std::chrono::seconds(20), [&] {
    const std::string log = broker.log();
    const std::size_t at = log.rfind(words);
    if (at == std::string::npos) return false;
    pid = std::stoi(log.substr(at + words.size()));
    return pid != not_this;
  });
  INFO(broker.log());
  REQUIRE(came);
  return pid;
}

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

std::string exclusive_file(const TemporaryFolder& folder) { return folder.path() / "device"; }

}  // namespace

TEST_CASE("a standby takes over what was loaded and held, and another one comes") {
  const BrokerFixture broker(with_either_standby());
  Client idle(broker);
  require_ok(idle, "hold", broker);
  for (int turn = 0; turn < 2; ++turn) {
    const pid_t executor = executor_of(broker);
    const pid_t next = standby(broker, executor);
    REQUIRE(::kill(executor, SIGKILL) == 0);
    const auto began = std::chrono::steady_clock::now();
    require_ok(idle, "check", broker);
    WARN("went on after " << std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - began).count() << " ms");
    require_ok(idle, "use", broker);
    REQUIRE(executor_of(broker) == next);
  }
  const Outcome newcomer = broker.run("vector_add_drv", std::vector<std::string>{});
  INFO(newcomer.explain() << broker.log());
  REQUIRE(newcomer.ok());
}

TEST_CASE("who got a copy of an image after the standby had loaded it has that copy again, whoever comes first") {
  const BrokerFixture broker(with_standby());
  {
    Client first(broker, "variables_client");
    require_ok(first, "load 0 0", broker);
    (void)standby(broker);
    const bool is_fed = eventually(std::chrono::seconds(20), [&] { return broker.log().find("loaded again") != std::string::npos; });
    INFO(broker.log());
    REQUIRE(is_fed);
  }
  Client owner(broker, "variables_client");
  require_ok(owner, "load 0 0", broker);  // the copy that is there
  require_ok(owner, "count", broker);
  owner.program().send(SIGSTOP);
  const Outcome restart = broker.ctl({"restart", "executors"});
  Client newcomer(broker, "variables_client");
  require_ok(newcomer, "load 0 0", broker);
  owner.program().send(SIGCONT);
  INFO(restart.explain() << newcomer.program().errors() << owner.program().errors() << broker.log());
  REQUIRE(restart.ok());
  CHECK(newcomer.ask("count") == "ok 6");
  CHECK(owner.ask("count") == "ok 7");
}

TEST_CASE("after a fault the standby serves the innocent") {
  const BrokerFixture broker(with_standby());
  Client guilty(broker), idle(broker);
  require_ok(idle, "hold", broker);
  const pid_t next = standby(broker);
  REQUIRE(guilty.ask("fault").rfind("700 ", 0) == 0);
  require_ok(idle, "check", broker);
  require_ok(idle, "use", broker);
  REQUIRE(executor_of(broker) == next);
}

// The milliseconds since the line of the control process's log in which `words` last stand.
long long milliseconds_since_line(const BrokerFixture& broker, const std::string& words) {
  const std::string log = broker.log();
  const std::size_t line = log.rfind("\n[", log.rfind(words));
  REQUIRE(line != std::string::npos);
  std::tm when{};
  std::istringstream text(log.substr(line + 2, 23));
  text >> std::get_time(&when, "%Y-%m-%d %H:%M:%S");
  when.tm_isdst = -1;
  const int milliseconds = std::stoi(log.substr(line + 2 + 20, 3));
  const auto at = std::chrono::system_clock::from_time_t(std::mktime(&when)) + Milliseconds(milliseconds);
  return std::chrono::duration_cast<Milliseconds>(std::chrono::system_clock::now() - at).count();
}

// How long the last executor took from its start, by the log: what making a context costs on this machine.
long long last_start(const BrokerFixture& broker) {
  const std::regex line("Executor 0 \\(pid [0-9]+\\) is ready after ([0-9]+) ms");
  const std::string log = broker.log();
  long long last = -1;
  for (std::sregex_iterator match(log.begin(), log.end(), line), end; match != end; ++match) last = std::stoll((*match)[1]);
  REQUIRE(last >= 0);
  return last;
}

// What is promised is promised for a GPU. The driver itself knows of an illegal address only 80 to 130 ms after it on an H200, and of a trap after
// half a second, unless the kernel log may be read.
TEST_CASE("from a fault to the bystander's next launch, with 1 GiB and 64 chunks, beside and without a standby") {
  struct Run {
    std::string command, answer;
    bool has_standby;
  };
  for (const auto& [command, error, has_standby] :
       {Run{"fault", "700 ", true}, Run{"fault", "700 ", false}, Run{"trap", "719 ", true}, Run{"trap", "719 ", false}}) {
    const BrokerFixture broker(has_standby ? with_standby() : BrokerOptions());
    Client guilty(broker), bystander(broker);
    require_ok(bystander, "chunks 1 1024", broker);
    require_ok(bystander, "chunks 64 33", broker);
    require_ok(bystander, "touch", broker);
    if (has_standby) (void)standby(broker);
    require_ok(guilty, "load_trap", broker);
    guilty.begin(command);
    const auto began = std::chrono::steady_clock::now();
    sleep_briefly();
    // On a busy machine the CPU driver's kernel may not have run yet, and the bystander be at work beside it.
    if (!on_gpu()) REQUIRE(eventually(std::chrono::seconds(10), [&] { return broker.log().find("lost its context") != std::string::npos; }));
    const std::string answer = bystander.ask("touch");
    const auto from_fault = std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - began).count();
    INFO(command << ": " << answer << "\n" << bystander.program().errors() << broker.log());
    REQUIRE(answer.rfind("ok", 0) == 0);
    const long long from_report = command == "fault" ? milliseconds_since_line(broker, "lost its context") : from_fault;
    WARN(command << (has_standby ? ", with a standby: " : ", without a standby: ") << from_fault << " ms from the fault, " << from_report
                 << " ms from the driver's report, if that was waited for");
    REQUIRE(guilty.answer().rfind(error, 0) == 0);
    require_ok(bystander, "check_chunks", broker);
    if (!on_gpu()) continue;
    if (command == "fault" && has_standby) REQUIRE(from_report <= 60);
    if (command == "fault" && !has_standby) REQUIRE(from_fault <= 250 + last_start(broker));
    if (command == "trap" && access("/dev/kmsg", R_OK) == 0) REQUIRE(from_fault <= 500);
  }
}

TEST_CASE("a standby that is killed is nobody's loss") {
  const BrokerFixture broker(with_either_standby());
  Client idle(broker);
  require_ok(idle, "hold", broker);
  const pid_t executor = executor_of(broker);
  REQUIRE(::kill(standby(broker), SIGKILL) == 0);
  REQUIRE(eventually(std::chrono::seconds(10), [&] { return broker.log().find("has no standby") != std::string::npos; }));
  require_ok(idle, "use", broker);
  REQUIRE(executor_of(broker) == executor);
  REQUIRE(::kill(executor, SIGKILL) == 0);
  require_ok(idle, "check", broker);
}

TEST_CASE("where the GPU takes one process at a time, the standby makes its context when the old one is gone") {
  if (on_gpu()) MPSSHIM_SKIP("the compute mode of a real GPU is not ours to change");
  const TemporaryFolder folder;
  BrokerOptions options = with_standby();
  options.environment = {{"MPSSHIM_CPU_EXCLUSIVE", exclusive_file(folder)}, {"MPSSHIM_CPU_TEARDOWN_MS", "300"}};
  const BrokerFixture broker(options);
  Client idle(broker);
  require_ok(idle, "hold", broker);
  const pid_t next = standby(broker);
  INFO(broker.log());
  REQUIRE(broker.log().find("but for its context") != std::string::npos);
  REQUIRE(::kill(executor_of(broker), SIGKILL) == 0);
  require_ok(idle, "check", broker);
  require_ok(idle, "use", broker);
  REQUIRE(executor_of(broker) == next);
  REQUIRE(broker.log().find("because another process has the device for itself: then it had gone") != std::string::npos);
}

TEST_CASE("where the GPU takes one process at a time, a restart waits and there is no second executor") {
  if (on_gpu()) MPSSHIM_SKIP("the compute mode of a real GPU is not ours to change");
  const TemporaryFolder folder;
  BrokerOptions options;
  options.environment = {{"MPSSHIM_CPU_EXCLUSIVE", exclusive_file(folder)}, {"MPSSHIM_CPU_TEARDOWN_MS", "300"}};
  options.arguments = {"--patience-s", "3"};
  const BrokerFixture broker(options);
  Client idle(broker);
  require_ok(idle, "hold", broker);
  REQUIRE(::kill(executor_of(broker), SIGKILL) == 0);
  require_ok(idle, "check", broker);
  INFO(broker.log());
  REQUIRE(broker.log().find("then it had gone") != std::string::npos);

  Client endless(broker), starving(broker);
  REQUIRE(endless.ask("spin") == "ok");
  const std::string answer = starving.ask("global");
  INFO(answer << broker.log());
  REQUIRE(is_mps_error(answer));
  REQUIRE(broker.log().find("has one executor, because the GPU takes one process at a time") != std::string::npos);
  (void)executor_of(broker);  // there is one
}

TEST_CASE("a broker whose GPU another process has for itself says so") {
  if (on_gpu()) MPSSHIM_SKIP("the compute mode of a real GPU is not ours to change");
  const TemporaryFolder folder;
  BrokerOptions options;
  options.environment = {{"MPSSHIM_CPU_EXCLUSIVE", exclusive_file(folder)}};
  const BrokerFixture first(options);
  std::string log;
  try {
    BrokerFixture second(options);
    (void)second.process().wait();
    log = second.log();
  } catch (const std::exception& failure) {
    log = failure.what();
  }
  INFO(log);
  REQUIRE(log.find("CUDA error 46") != std::string::npos);
}
