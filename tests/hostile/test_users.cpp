// SPDX-License-Identifier: Apache-2.0
// Whose clients are served: the broker's own user's, or everybody's where it was started so (NVIDIA MPS manual, "-multiuser-server").
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr const char* kNobody = "65534";

// The temporary folder and the sockets let everybody in: it is the broker that decides.
void open_to_all(const BrokerFixture& broker, bool sockets) {
  REQUIRE(chmod(broker.pipe_dir().parent_path().c_str(), 0755) == 0);
  REQUIRE(chmod(broker.pipe_dir().c_str(), 0755) == 0);
  if (sockets) REQUIRE(chmod((broker.pipe_dir() / "mpsshim.sock").c_str(), 0666) == 0);
}

// What a process of the broker's user gets of its processes: descriptors that it can open, or take, and memory that it can read.
int loot_of(const std::vector<pid_t>& processes) {
  int loot = 0;
  for (const pid_t pid : processes) {
    const auto pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    for (int number = 0; number < 100; ++number) {
      const int file = open(("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number)).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
      const auto taken = static_cast<int>(syscall(SYS_pidfd_getfd, pidfd, number, 0));
      for (const int fd : {file, taken}) {
        loot += fd >= 0 ? 1 : 0;
        if (fd >= 0) close(fd);
      }
    }
    const int memory = open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
    loot += memory >= 0 ? 1 : 0;
    for (const int fd : {memory, pidfd}) close(fd);
  }
  return loot;
}

// Of a broker with a client: what a process of the same user gets, in a process of that user. -1: it could not be tried.
int loot_beside(const std::vector<std::string>& arguments) {
  BrokerOptions options;
  options.arguments = arguments;
  BrokerFixture broker(options);
  Client client(broker);
  if (client.ask("hold") != "ok") return -1;
  std::vector<pid_t> processes = broker.servers();
  if (processes.size() != 1) return -1;
  processes.push_back(broker.process().pid());
  return loot_of(processes);
}

// Root may look at everything, so a child becomes somebody else.
int as_ordinary_user(int (*act)()) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int result = 255;
    try {
      const uid_t nobody = 65534;
      if (geteuid() != 0 || (setgroups(0, nullptr) == 0 && setgid(nobody) == 0 && setuid(nobody) == 0)) result = act();
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "%s\n", failure.what());
    }
    _exit(result);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

}  // namespace

TEST_CASE("a process of the broker's user gets nothing of others by way of the broker's processes") {
  CHECK(as_ordinary_user([] { return loot_beside({}); }) == 0);
  const int shown = as_ordinary_user([] { return std::min(loot_beside({"--dumpable"}), 200); });
  CHECK(shown > 10);  // as any process, where it was asked for
  CHECK(shown <= 200);
}

TEST_CASE("a client of another user is refused") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  BrokerFixture broker;
  open_to_all(broker, true);
  Client other = Client::begin(broker, "hostile_client");
  REQUIRE(other.answer() == "ok attached");
  const std::string answer = other.ask(std::string("as_user ") + kNobody);
  INFO(answer << "\n" << broker.log());
  CHECK(answer == "ok 805 0");  // CUDA_ERROR_MPS_CONNECTION_FAILED, and no facts
  CHECK(broker.log().find("of uid 65534 is refused") != std::string::npos);
  CHECK(broker.clients().empty());
}

TEST_CASE("a broker for all users serves a client of another one, and takes commands from its own and root alone") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  BrokerOptions options;
  options.arguments = {"--multiuser-server"};
  BrokerFixture broker(options);
  open_to_all(broker, false);
  Client other = Client::begin(broker, "hostile_client");
  REQUIRE(other.answer() == "ok attached");
  const std::string answer = other.ask(std::string("as_user ") + kNobody);
  INFO(answer << "\n" << broker.log());
  CHECK(answer == "ok 0 1");
  CHECK(other.ask("work") == "ok");
  CHECK(other.ask("command get_server_list") == "ok refused");
  CHECK(broker.clients().size() == 1);
}

TEST_CASE("users share no executor: one's fault, endless kernel and restart are nothing to the other") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  BrokerOptions options;
  options.arguments = {"--multiuser-server", "--quarantine-faults", "0"};
  const BrokerFixture broker(options);
  open_to_all(broker, false);
  Client own(broker);
  Client ada = Client::of_user(broker, 1001), bob = Client::of_user(broker, 1002);
  INFO(broker.log());
  const std::vector<pid_t> before = broker.servers();
  REQUIRE(before.size() == 3);
  for (Client* client : {&own, &ada, &bob}) REQUIRE(client->ask("hold") == "ok");
  CHECK(broker.ctl({"ps", "-l"}).output.find(" 1001 ") != std::string::npos);

  for (int i = 0; i < 6; ++i) {
    Client guilty = Client::of_user(broker, 1001);
    REQUIRE(guilty.ask("fault").rfind("700 CUDA_ERROR_ILLEGAL_ADDRESS", 0) == 0);
  }
  const std::vector<pid_t> after = broker.servers();
  CHECK(after[0] == before[0]);  // the broker's own user's
  CHECK(after[1] != before[1]);
  CHECK(after[2] == before[2]);

  std::vector<Client> endless;
  for (int i = 0; i < 2; ++i) {
    endless.push_back(Client::of_user(broker, 1001));
    REQUIRE(endless.back().ask("spin") == "ok");
  }
  const auto began = std::chrono::steady_clock::now();
  for (Client* client : {&own, &bob}) CHECK(client->ask("image other_ptx") == "ok");
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  CHECK(broker.servers().size() == 3);  // nobody has had to move
  endless.clear();

  REQUIRE(eventually(std::chrono::seconds(20), [&] { return broker.clients().size() == 3; }));
  const Outcome restarted = broker.ctl({"restart"});
  INFO(restarted.explain() << broker.log());
  REQUIRE(restarted.ok());
  for (Client* client : {&own, &ada, &bob}) CHECK(client->ask("check") == "ok");
  CHECK(broker.servers().size() == 3);
}

TEST_CASE("a user whose clients take all that one user may have takes nobody else's place") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  for (const auto& [option, attached] : {std::pair("--user-sessions", 2), std::pair("--user-connections", 2)}) {
    BrokerOptions options;
    options.arguments = {"--multiuser-server", option, "2"};
    const BrokerFixture broker(options);
    open_to_all(broker, false);
    std::vector<Client> ada;
    for (int i = 0; i < attached; ++i) ada.push_back(Client::of_user(broker, 1001));
    CHECK_THROWS(Client::of_user(broker, 1001));
    INFO(broker.log());
    CHECK(broker.log().find(std::string("which is the limit for one user (") + option) != std::string::npos);
    Client bob = Client::of_user(broker, 1002);
    CHECK(bob.ask("hold") == "ok");
    CHECK(broker.ctl({"users"}).output.find("1001 ") != std::string::npos);
    ada.pop_back();
    CHECK(eventually(std::chrono::seconds(10), [&] { return broker.clients().size() == 2; }));
    CHECK(Client::of_user(broker, 1001).ask("hold") == "ok");
  }
}

TEST_CASE("a user whose clients take all device memory that one user may have leaves the others theirs") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  for (const bool shares : {false, true}) {
    BrokerOptions options;
    options.arguments = {"--multiuser-server", "--user-device-mib", "200"};
    if (shares) options.arguments.push_back("--share-executors");
    const BrokerFixture broker(options);
    open_to_all(broker, false);
    Client first = Client::of_user(broker, 1001, "memory_client"), second = Client::of_user(broker, 1001, "memory_client");
    Client bob = Client::of_user(broker, 1002, "memory_client");
    INFO(broker.log());
    CHECK(first.ask("take 200") == "ok");
    for (const char* more : {"take 1", "piece 2", "array 1"}) CHECK(second.ask(more) == "2 CUDA_ERROR_OUT_OF_MEMORY");
    CHECK(bob.ask("free") == "ok 200");
    CHECK(bob.ask("take 200") == "ok");
    CHECK(broker.log().find("clients of user 1001 hold 200 MiB on device 0, and may hold 200 MiB (--user-device-mib)") != std::string::npos);
  }
}

TEST_CASE("users share executors where the operator says so") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  BrokerOptions options;
  options.arguments = {"--multiuser-server", "--share-executors"};
  const BrokerFixture broker(options);
  open_to_all(broker, false);
  Client own(broker);
  Client ada = Client::of_user(broker, 1001);
  CHECK(broker.servers().size() == 1);
  CHECK(broker.clients().size() == 2);
  CHECK(ada.ask("hold") == "ok");
  CHECK(own.ask("hold") == "ok");
}
