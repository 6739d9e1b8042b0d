// SPDX-License-Identifier: Apache-2.0
// What the broker's processes have given up of the rights they were started with: as the kernel says, and as somebody finds who can have an executor
// make system calls of his choice (a driver that makes them).
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <linux/capability.h>
#include <sys/personality.h>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

using Status = std::map<std::string, std::string>;

// Of each of its threads.
std::vector<Status> threads_of(pid_t pid) {
  std::vector<Status> threads;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    std::ifstream file(entry.path() / "status");
    Status status;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name, value;
      if (words >> name >> value) status[name] = value;
    }
    if (!status.empty()) threads.push_back(status);
  }
  return threads;
}

std::uint64_t bits(std::initializer_list<unsigned> capabilities) {
  std::uint64_t mask = 0;
  for (const unsigned capability : capabilities) mask |= std::uint64_t{1} << capability;
  return mask;
}

void require_walled_in(pid_t pid, std::uint64_t may_keep) {
  const std::vector<Status> threads = threads_of(pid);
  REQUIRE_FALSE(threads.empty());
  for (const Status& thread : threads) {
    INFO("thread " << thread.at("Pid:") << " (" << thread.at("Name:") << ") of process " << pid);
    CHECK(thread.at("NoNewPrivs:") == "1");
    if (sanitizer_environment().empty()) CHECK(thread.at("Seccomp:") == "2");
    for (const char* set : {"CapEff:", "CapPrm:", "CapInh:", "CapAmb:"}) CHECK((std::stoull(thread.at(set), nullptr, 16) & ~may_keep) == 0);
  }
}

const std::uint64_t kOfControl = bits({CAP_SYS_PTRACE, CAP_KILL, CAP_SETUID, CAP_SETGID, CAP_SYS_RESOURCE, CAP_SYSLOG});
const std::uint64_t kOfExecutor = bits({CAP_SYS_RESOURCE});

// What an executor is given besides its rights: whoever gains some by executing a program loses it.
void require_same_addresses(pid_t executor) {
  std::ifstream file("/proc/" + std::to_string(executor) + "/personality");
  std::string flags;
  if (!(file >> flags)) return;  // who may look
  CHECK((std::stoul(flags, nullptr, 16) & ADDR_NO_RANDOMIZE) != 0);
}

void require_all_walled_in(BrokerFixture& broker) {
  const std::vector<pid_t> servers = broker.servers();
  REQUIRE(servers.size() == 1);
  for (const pid_t server : servers) {
    require_walled_in(server, kOfExecutor);
    require_same_addresses(server);
  }
  require_walled_in(broker.process().pid(), kOfControl);
}

BrokerOptions with_curious_driver(const std::vector<std::string>& arguments = {}) {
  BrokerOptions options;
  options.driver = built_library("libfaulty_driver_wanted_rights.so");
  options.arguments = arguments;
  return options;
}

// What the executor finds when it tries.
std::string tried_in(const BrokerFixture& broker) {
  Client client(broker);
  if (const std::string answer = client.ask("own"); answer != "ok") return answer;
  return client.ask("fill dead0005");
}

}  // namespace

TEST_CASE("executor and control process have given up rights, in all their threads, also after restarts") {
  BrokerFixture broker;
  Client client(broker);
  REQUIRE(client.ask("hold") == "ok");
  require_all_walled_in(broker);
  const auto filters = [&] { return threads_of(broker.process().pid()).front()["Seccomp_filters:"]; };
  const std::string before = filters();
  REQUIRE(broker.ctl({"restart", "executors"}).ok());
  REQUIRE(client.ask("use") == "ok");
  require_all_walled_in(broker);
  for (int turn = 0; turn < 3; ++turn) REQUIRE(broker.ctl({"restart"}).ok());
  REQUIRE(client.ask("use") == "ok");
  require_all_walled_in(broker);
  CHECK(filters() == before);
}

TEST_CASE("a broker that root has started becomes another user, with two capabilities at most, also after a restart") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become somebody else");
  // The folder that the broker makes its directory in is to be its user's.
  const TemporaryFolder folder;
  BrokerOptions options;
  options.program = folder.path() / "mpsbroker";
  std::ofstream(options.program) << "#!/bin/sh\nfor word in \"$@\"; do case $word in */pipe) chown -R 65534 ${word%/pipe};; esac; done\nexec "
                                 << built_program("mpsbroker") << " --user nobody \"$@\"\n";
  std::filesystem::permissions(options.program, std::filesystem::perms::owner_all);
  BrokerFixture broker(options);
  for (int turn = 0; turn < 2; ++turn) {
    Client client = Client::of_user(broker, 65534);
    INFO(broker.log());
    REQUIRE(client.ask("hold") == "ok");
    std::vector<pid_t> processes = broker.servers();
    REQUIRE(processes.size() == 1);
    require_walled_in(processes.front(), 0);
    require_same_addresses(processes.front());
    require_walled_in(broker.process().pid(), bits({CAP_SYSLOG}));
    processes.push_back(broker.process().pid());
    for (const pid_t process : processes) {
      for (const Status& thread : threads_of(process)) {
        CHECK(thread.at("Uid:") == "65534");
        CHECK(thread.at("Gid:") == "65534");
      }
    }
    CHECK(threads_of(broker.process().pid()).front().at("CapEff:") != "0000000000000000");
    if (turn == 0) REQUIRE(broker.ctl({"restart"}).ok());
  }
}

TEST_CASE("what is not an executor's business is refused to a live one") {
  if (!sanitizer_environment().empty()) MPSSHIM_SKIP("sanitizers need system calls of their own");
  const BrokerFixture broker(with_curious_driver());
  const std::string answer = tried_in(broker);
  INFO(answer << "\n" << broker.log());
  CHECK(answer.starts_with("800 CUDA_ERROR_NOT_PERMITTED"));
  CHECK(Client(broker).ask("hold") == "ok");
}

TEST_CASE("with --keep-rights nothing is given up") {
  BrokerFixture broker(with_curious_driver({"--keep-rights"}));
  const std::string answer = tried_in(broker);
  INFO(answer << "\n" << broker.log());
  CHECK(answer.starts_with("999 CUDA_ERROR_UNKNOWN"));
  const Status own = threads_of(getpid()).front();
  for (const char* what : {"NoNewPrivs:", "Seccomp:", "CapEff:"}) CHECK(threads_of(broker.process().pid()).front().at(what) == own.at(what));
}
