// SPDX-License-Identifier: Apache-2.0
// mpsbroker and mpsctl as processes: command line, daemon, lock, sockets, executor processes, signals. The executor is the tests' own.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/handshake.hpp"
#include "proto/socket.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/control/support/broker_in_background.hpp"

namespace fs = std::filesystem;
using namespace mpsshim;
using namespace mpsshim::broker::control::testing;

namespace {

// A client process of its own: attaches, says so, waits to be killed.
class Client {
 public:
  explicit Client(const std::string& dir) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) be(dir, ends[1]);
    close(ends[1]);
    REQUIRE(read(ends[0], &attached, sizeof attached) == sizeof attached);
    close(ends[0]);
  }
  ~Client() { kill_now(); }
  void kill_now() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  proto::Attached attached;

 private:
  [[noreturn]] static void be(const std::string& dir, int report) {
    const proto::Socket socket = proto::Socket::connect_to(dir + "/" + proto::kClientSocketName);
    const proto::FileDescriptor self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    const int fd = self.get();
    proto::Welcome welcome;
    proto::Attached attached;
    std::size_t bytes = 0;
    proto::ReceivedFds fds;
    const bool good = proto::send_message(socket, proto::Hello{}, {&fd, 1}) == proto::SocketStatus::ok &&
                      socket.receive(std::as_writable_bytes(std::span(&welcome, 1)), bytes, fds) == proto::SocketStatus::ok &&
                      proto::send_message(socket, proto::Attach{}) == proto::SocketStatus::ok &&
                      socket.receive(std::as_writable_bytes(std::span(&attached, 1)), bytes, fds) == proto::SocketStatus::ok;
    if (!good || write(report, &attached, sizeof attached) != sizeof attached) _exit(1);
    // A child that outlives us keeps the socket open: the broker is to see our death all the same.
    if (fork() == 0) {
      close(report);
      sleep(2);
      _exit(0);
    }
    pause();
    _exit(0);
  }
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("a daemon serves when the command returns, and quits when told, leaving no socket") {
  Broker broker("serve");
  INFO(broker.started.text);
  REQUIRE(broker.started.status == 0);
  CHECK(broker.started.text.empty());
  const pid_t executor = broker.executor();
  CHECK(kill(executor, 0) == 0);
  CHECK(broker.ctl("get_server_status " + std::to_string(executor)).text == "ACTIVE\n");
  CHECK(fs::status(broker.dir).permissions() == fs::perms::owner_all);
  const pid_t pid = broker.pid();
  CHECK(broker.ctl("quit").status == 0);
  CHECK(eventually([&] { return kill(pid, 0) != 0; }));
  CHECK(eventually([&] { return kill(executor, 0) != 0; }));
  CHECK_FALSE(fs::exists(broker.dir + "/" + proto::kClientSocketName));
  CHECK_FALSE(fs::exists(broker.dir + "/" + proto::kControlSocketName));
}

TEST_CASE("a broker begins with a file of settings, or with one line that names the mistake in it") {
  char path[] = "/tmp/mpsshim-test-XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  close(fd);
  std::ofstream(path) << "[servers.a]\nclient_priority = \"1\"\n[servers.a.namespaces.batch]\npinned_memory_limit = \"2G\"\n";
  const std::string option = std::string("-a ") + path;
  const Outcome refused = [&] {
    std::ofstream(std::string(path) + ".wrong") << "[servers.a]\nsize = 5\n";
    return Broker("serve", option + ".wrong").started;
  }();
  INFO(refused.text);
  CHECK(refused.status == 1);
  CHECK(std::count(refused.text.begin(), refused.text.end(), '\n') == 1);
  if (refused.text.find("was built without toml++") != std::string::npos) {
    fs::remove(path);
    MPSSHIM_SKIP("this build has no toml++: install libtomlplusplus-dev");
  }
  CHECK(refused.text.find(".wrong:2: \"size\": no such key is obeyed: ") != std::string::npos);
  Broker broker("serve", option);
  INFO(broker.started.text);
  REQUIRE(broker.started.status == 0);
  fs::remove(path);
  fs::remove(std::string(path) + ".wrong");
  CHECK(broker.ctl("get_default_client_priority").text == "1\n");
  CHECK(broker.ctl("namespace list --csv").text.find("batch," + std::to_string(geteuid()) + ",0,0,,2147483648,100.0,") != std::string::npos);
}

TEST_CASE("a second broker for the same directory is refused with one line and status 1") {
  Broker broker("serve");
  REQUIRE(broker.started.status == 0);
  for (const char* mode : {"-d", "-f"}) {
    const Outcome second = run(MPSSHIM_TEST_BROKER " --driver /test/serve --pipe-dir '" + broker.dir + "' " + mode);
    CHECK(second.status == 1);
    INFO(second.text);
    CHECK(second.text.find("pid " + std::to_string(broker.pid())) != std::string::npos);
    CHECK(std::count(second.text.begin(), second.text.end(), '\n') == 1);
  }
  CHECK(broker.ctl("get_server_list").status == 0);
}

TEST_CASE("no driver: the command fails and says why") {
  for (const char* behaviour : {"refuse", "crash"}) {
    Broker broker(behaviour);
    INFO(broker.started.text);
    CHECK(broker.started.status == 1);
    CHECK(broker.started.text.find("no driver serves") != std::string::npos);
    // The command returns when the daemon has said why; the daemon removes its sockets right after.
    for (int i = 0; i < 200 && broker.serves(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK_FALSE(broker.serves());
  }
}

TEST_CASE("the executor has the connections that the command line says, whatever the broker's environment") {
  Broker broker("narrow", "--connections 3 --copy-connections 2");
  INFO(broker.started.text);
  CHECK(broker.started.status == 0);
}

TEST_CASE("mpsctl without a broker: one line and status 2, unknown commands and lines from standard input") {
  const Outcome none = run(MPSSHIM_TEST_CTL " --pipe-dir /tmp/mpsshim-nobody-here get_server_list");
  CHECK(none.status == 2);
  CHECK(std::count(none.text.begin(), none.text.end(), '\n') == 1);
  Broker broker("serve");
  CHECK(broker.ctl("dance").status == 1);
  const Outcome lines = run("printf 'get_server_list\\n\\nget_server_list\\n' | " MPSSHIM_TEST_CTL " --pipe-dir '" + broker.dir + "'");
  CHECK(lines.status == 0);
  CHECK(std::count(lines.text.begin(), lines.text.end(), '\n') == 2);
}

TEST_CASE("clients are listed while they live, and their death is seen though a child keeps their socket") {
  Broker broker("serve");
  REQUIRE(broker.started.status == 0);
  Client first(broker.dir);
  Client second(broker.dir);
  CHECK(first.attached.header.status == 0);
  CHECK(first.attached.device_lease.address != second.attached.device_lease.address);
  const std::string executor = std::to_string(broker.executor());
  CHECK(broker.ctl("get_client_list " + executor).text == std::to_string(first.pid()) + "\n" + std::to_string(second.pid()) + "\n");
  CHECK(broker.ctl("ps").text.find("unit_control_process") != std::string::npos);
  first.kill_now();
  CHECK(eventually([&] { return broker.ctl("get_client_list " + executor).text == std::to_string(second.pid()) + "\n"; }, 1000));
}

TEST_CASE("clients that are killed leave nothing behind in the broker") {
  Broker broker("serve", "--no-standby --idle-compiler-ms 100");  // it would come while things are counted
  REQUIRE(broker.started.status == 0);
  const auto has_one_child = [&] {  // the executor: the process that reads images comes and goes with clients
    std::ifstream file("/proc/" + std::to_string(broker.pid()) + "/task/" + std::to_string(broker.pid()) + "/children");
    return std::distance(std::istream_iterator<pid_t>(file), {}) == 1;
  };
  const auto descriptors = [&] {
    const fs::directory_iterator all("/proc/" + std::to_string(broker.pid()) + "/fd");
    return std::distance(fs::begin(all), fs::end(all));
  };
  const auto mappings = [&] {
    std::ifstream file("/proc/" + std::to_string(broker.pid()) + "/maps");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    std::size_t count = 0;
    for (auto at = text.find("mpsshim-channel"); at != std::string::npos; at = text.find("mpsshim-channel", at + 1)) ++count;
    return count;
  };
  { Client first(broker.dir); }
  const auto no_clients = [&] { return broker.ctl("get_client_list " + std::to_string(broker.executor())).text.empty(); };
  REQUIRE(eventually(no_clients));
  REQUIRE(eventually([&] { return mappings() == 0 && has_one_child(); }));
  const auto before = descriptors();  // perhaps with the connection of the last question, which the broker has yet to close
  for (int i = 0; i < 100; ++i) Client{broker.dir};
  CHECK(eventually([&] { return no_clients() && mappings() == 0 && has_one_child() && descriptors() <= before; }));
}

TEST_CASE("an executor that is killed is replaced at once") {
  Broker broker("serve");
  REQUIRE(broker.started.status == 0);
  const pid_t before = broker.executor();
  REQUIRE(before > 0);
  kill(before, SIGKILL);
  CHECK(eventually([&] { return broker.executor() > 0 && broker.executor() != before; }));
  CHECK(eventually([&] { return broker.ctl("get_server_status " + std::to_string(broker.executor())).text == "ACTIVE\n"; }));
  CHECK(broker.log().find("signal 9") != std::string::npos);
}

TEST_CASE("work that outlives its client costs the executor process") {
  Broker broker("busy", "--orphan-ms 50 --drain-ms 20");
  REQUIRE(broker.started.status == 0);
  const pid_t before = broker.executor();
  REQUIRE(before > 0);
  Client client(broker.dir);
  client.kill_now();
  CHECK(eventually([&] { return broker.executor() > 0 && broker.executor() != before; }));
  CHECK(kill(before, 0) != 0);
  CHECK(first_line(broker.ctl("get_client_list " + std::to_string(broker.executor())).text).empty());
}

TEST_CASE("signals end the broker, with its clients and executor, a stubborn executor is killed") {
  for (const int number : {SIGTERM, SIGINT}) {
    Broker broker("stubborn");
    REQUIRE(broker.started.status == 0);
    const pid_t executor = broker.executor();
    const pid_t pid = broker.pid();
    kill(pid, number);
    CHECK(eventually([&] { return kill(pid, 0) != 0; }));
    CHECK(kill(executor, 0) != 0);
    CHECK_FALSE(broker.serves());
  }
}

TEST_CASE("an executor does not outlive a control process that is killed, the next broker takes over the directory") {
  Broker broker("serve");
  REQUIRE(broker.started.status == 0);
  const pid_t executor = broker.executor();
  kill(broker.pid(), SIGKILL);
  CHECK(eventually([&] { return kill(executor, 0) != 0; }));
  const Outcome next = run(MPSSHIM_TEST_BROKER " -d --driver /test/serve --pipe-dir '" + broker.dir + "'");
  INFO(next.text);
  CHECK(next.status == 0);
}

TEST_CASE("quit -t waits for clients, refuses new ones, and ends in time") {
  Broker broker("serve");
  REQUIRE(broker.started.status == 0);
  Client client(broker.dir);
  const pid_t pid = broker.pid();
  std::thread quitter([&] { CHECK(broker.ctl("quit -t 30").status == 0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(kill(pid, 0) == 0);
  Client late(broker.dir);
  CHECK(late.attached.header.status == 807);
  client.kill_now();
  quitter.join();
  CHECK(eventually([&] { return kill(pid, 0) != 0; }));  // once init has reaped it
}

TEST_CASE("what cannot be is refused before anything starts") {
  for (const char* options : {"", "-d -f", "-f --window 5", "-f --max-clients 0", "-f --max-clients 513", "-f --no-such-option"}) {
    INFO(options);
    const Outcome outcome = run(MPSSHIM_TEST_BROKER " --driver /test/serve --pipe-dir /tmp/mpsshim-test-refused " + std::string(options));
    CHECK(outcome.status == 2);
    CHECK_FALSE(outcome.text.empty());
  }
  CHECK_FALSE(fs::exists("/tmp/mpsshim-test-refused"));
  const Outcome help = run(MPSSHIM_TEST_BROKER " --help");
  CHECK(help.status == 0);
  CHECK(help.text.find("--orphan-ms") != std::string::npos);
  CHECK(help.text.find("--executor ") == std::string::npos);
}
