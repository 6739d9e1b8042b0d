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

namespace fs = std::filesystem;
using namespace mpsshim;

namespace {

struct Outcome {
  int status = -1;
  std::string text;  // standard output and error
};

Outcome run(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[1024];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) outcome.text += buffer;
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

template <typename Done>
bool eventually(Done&& done, int limit_ms = 5000) {
  for (int i = 0; i < limit_ms / 5; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// A broker in the background, in a directory of its own.
class Broker {
 public:
  explicit Broker(const std::string& behaviour, const std::string& options = "") {
    char name[] = "/tmp/mpsshim-test-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    root_ = name;
    dir = root_ + "/a directory with quite a long name, longer than what fits into an address of a socket, which is 107 characters";
    started = run("LD_PRELOAD= CUDA_MPS_PIPE_DIRECTORY=/nowhere CUDA_DEVICE_MAX_COPY_CONNECTIONS=32 " MPSSHIM_TEST_BROKER " -d --driver /test/" +
                  behaviour + " --pipe-dir '" + dir + "' " + options);
  }
  ~Broker() {
    (void)ctl("quit --now");
    (void)eventually([&] { return !serves(); });
    fs::remove_all(root_);
  }
  Outcome ctl(const std::string& command) const { return run(MPSSHIM_TEST_CTL " --pipe-dir '" + dir + "' " + command); }
  bool serves() const { return fs::exists(dir + "/" + proto::kControlSocketName); }
  std::string log() const {
    std::ifstream file(dir + "/control.log");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  pid_t executor() const {
    std::istringstream text(ctl("servers").text);  // of the process now
    std::string line;
    std::string number;
    pid_t pid = -1;
    std::getline(text, line);
    return text >> number >> pid ? pid : -1;
  }
  pid_t pid() const {
    std::ifstream file(dir + "/mpsbroker.lock");
    pid_t value = -1;
    file >> value;
    return value;
  }

  std::string dir;
  Outcome started;

 private:
  std::string root_;
};

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

TEST_CASE("mpsctl without a broker: one line and status 2; unknown commands and lines from standard input") {
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
  const auto before = descriptors();
  for (int i = 0; i < 100; ++i) Client{broker.dir};
  CHECK(eventually([&] { return no_clients() && mappings() == 0 && has_one_child() && descriptors() == before; }));
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

TEST_CASE("signals end the broker, with its clients and executor; a stubborn executor is killed") {
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

TEST_CASE("an executor does not outlive a control process that is killed; the next broker takes over the directory") {
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

TEST_CASE("mpsctl: what was refused is one line on standard error and status 1, what is no command status 2") {
  Broker broker("serve");
  REQUIRE(broker.started.status == 0);
  const struct {
    const char* words;
    int status;
    const char* told;
  } cases[] = {
      {"dance", 1, "mpsctl: unknown command \"dance\": see help\n"},
      {"get_server_status", 1, "mpsctl: PID is missing: usage: get_server_status [--json] PID\n"},
      {"get_server_status x", 1, "mpsctl: \"x\" is no number, and PID is one: usage: get_server_status [--json] PID\n"},
      {"quit --now -t 5", 1, "mpsctl: -t and --now exclude each other: usage: quit [-t SECONDS | --now]\n"},
      {"--json quit", 1, "mpsctl: quit has no option \"--json\": usage: quit [-t SECONDS | --now]\n"},
      {"--format xml ps", 1, "mpsctl: \"xml\" is no format: text, json, csv or csv,noheader: usage: ps [-l] [-p PID] [--json | --csv]\n"},
      {"''", 2, "mpsctl: the command is empty: see mpsctl --help\n"},
      {"ps '' -l", 2, "mpsctl: there is an empty word after \"ps\": see mpsctl --help\n"},
      {"--nonsense ps", 2, "mpsctl: there is no option \"--nonsense\": see mpsctl --help\n"},
      {"-x", 2, "mpsctl: there is no option \"-x\": see mpsctl --help\n"},
      {"--json --format csv ps", 2, "mpsctl: --json and --format exclude each other\n"},
      {"$(printf '%070000d' 0)", 2, "mpsctl: the command is too long\n"},
  };
  for (const auto& tried : cases) {
    INFO(tried.words);
    const Outcome outcome = broker.ctl(tried.words);
    CHECK(outcome.status == tried.status);
    CHECK(outcome.text == tried.told);
    CHECK(broker.ctl(std::string(tried.words) + " 2>/dev/null | cat").text.empty());
  }
  CHECK(broker.ctl("get_server_list").status == 0);
}

TEST_CASE("mpsctl --json and --format are for every line of standard input") {
  Broker broker("serve");
  const std::string ctl = MPSSHIM_TEST_CTL " --pipe-dir '" + broker.dir + "' ";
  const Outcome documents = run("printf 'get_server_list\\nps\\n' | " + ctl + "--json");
  CHECK(documents.status == 0);
  CHECK(std::count(documents.text.begin(), documents.text.end(), '\n') == 2);
  CHECK(documents.text.find("{\"schema\":\"mpsshim.ps\",\"version\":1,\"clients\":[]}\n") != std::string::npos);
  CHECK(run("echo ps | " + ctl + "--format csv").text.starts_with("pid,session,"));
  CHECK(broker.ctl("--json get_server_list").text == broker.ctl("get_server_list --json").text);
}

TEST_CASE("options of NVIDIA's with one dash: the version, and a server for all users") {
  for (const std::string program : {MPSSHIM_TEST_BROKER, MPSSHIM_TEST_CTL}) {
    CHECK(run(program + " -v").text == MPSSHIM_VERSION "\n");
    CHECK(run(program + " -v").status == 0);
  }
  Broker broker("serve", "-multiuser-server");
  INFO(broker.started.text);
  REQUIRE(broker.started.status == 0);
  // Another user's server is started with its first client: only one that serves all users says so.
  CHECK(broker.ctl("start_server -uid 12345").text.find("is started with that user's first client") != std::string::npos);
}
