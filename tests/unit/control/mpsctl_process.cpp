// SPDX-License-Identifier: Apache-2.0
// mpsctl as its users have it: what is told where, exit statuses, forms of answers, a terminal.
#include <algorithm>
#include <csignal>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>

#include "tests/unit/control/support/broker_in_background.hpp"

using namespace mpsshim;
using namespace mpsshim::broker::control::testing;

namespace {

// mpsctl at a terminal of its own.
class Terminal {
 public:
  Terminal(const std::string& dir, const char* kind) {
    pid_ = forkpty(&fd_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    setenv("TERM", kind, 1);
    unsetenv("LD_PRELOAD");
    execl(MPSSHIM_TEST_CTL, MPSSHIM_TEST_CTL, "--pipe-dir", dir.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  ~Terminal() {
    if (status_ < 0 && pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close(fd_);
  }
  // What comes until `text` has, or the end; it goes from what is read next.
  std::string read_until(const std::string& text) {
    constexpr int kLimitMs = 10'000;
    std::size_t at = std::string::npos;
    pollfd ready{fd_, POLLIN, 0};
    while ((at = read_.find(text)) == std::string::npos && poll(&ready, 1, kLimitMs) > 0) {
      char buffer[512];
      const ssize_t bytes = read(fd_, buffer, sizeof buffer);
      if (bytes <= 0) break;
      read_.append(buffer, static_cast<std::size_t>(bytes));
    }
    const std::size_t end = at == std::string::npos ? read_.size() : at + text.size();
    const std::string part = read_.substr(0, end);
    read_.erase(0, end);
    return part;
  }
  void type(const std::string& text) { REQUIRE(write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size())); }
  // Its exit status; 128: it has not ended by itself.
  int await_end(int limit_ms = 10'000) {
    int status = 0;
    const auto has_ended = [&] {
      drain();
      return waitpid(pid_, &status, WNOHANG) == pid_;
    };
    if (!eventually(has_ended, limit_ms)) return 128;
    return status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  // Ctrl-D, again if need be: libedit shows its prompt a moment before it takes the terminal over, and one that comes in between stands in its line
  // as a zero. Ctrl-U takes that away.
  int end_input() {
    int status = 128;
    for (int tries = 0; tries < 20 && status == 128; ++tries) {
      (void)!write(fd_, "\x15\x04", 2);
      status = await_end(500);
    }
    return status;
  }

 private:
  // It may wait for what it writes to be read.
  void drain() {
    pollfd ready{fd_, POLLIN, 0};
    char buffer[512];
    while (poll(&ready, 1, 0) > 0 && read(fd_, buffer, sizeof buffer) > 0) {
    }
  }

  int fd_ = -1;
  pid_t pid_ = -1;
  int status_ = -1;
  std::string read_;
};

constexpr const char* kPrompt = "mpsctl> ";

}  // namespace

TEST_CASE("mpsctl at a terminal: a prompt for each line, what was refused ends nothing, the end of input does") {
  for (const char* kind : {"dumb", "xterm"}) {
    INFO(kind);
    Broker broker("serve");
    const std::string server = broker.ctl("get_server_list").text;
    Terminal terminal(broker.dir, kind);
    CHECK(terminal.read_until(kPrompt).ends_with(kPrompt));
    terminal.type("get_server_list\n");
    CHECK(terminal.read_until(kPrompt).find(first_line(server) + "\r\n") != std::string::npos);
    terminal.type("\n");
    CHECK(terminal.read_until(kPrompt).ends_with(kPrompt));
    terminal.type("dance\n");
    CHECK(terminal.read_until(kPrompt).find("mpsctl: unknown command \"dance\": see help\r\n") != std::string::npos);
    CHECK(terminal.end_input() == 1);
    CHECK(broker.serves());
  }
}

TEST_CASE("mpsctl at a terminal ends with the broker that it has told to") {
  Broker broker("serve");
  Terminal terminal(broker.dir, "dumb");
  (void)terminal.read_until(kPrompt);
  terminal.type("quit --now\n");
  CHECK(terminal.await_end() == 0);
  CHECK_FALSE(broker.serves());
}

TEST_CASE("mpsctl at a terminal: lines before, and completion, where libedit is installed") {
  if (dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL) == nullptr) MPSSHIM_SKIP("libedit is not installed");
  Broker broker("serve");
  const std::string server = first_line(broker.ctl("get_server_list").text) + "\r\n";
  Terminal terminal(broker.dir, "xterm");
  (void)terminal.read_until(kPrompt);
  terminal.type("get_server_li\t\n");
  CHECK(terminal.read_until(server).ends_with(server));
  (void)terminal.read_until(kPrompt);
  terminal.type("\x1b[A\n");
  CHECK(terminal.read_until(server).ends_with(server));
  (void)terminal.read_until(kPrompt);
  terminal.type("device_query --c\t\n");
  CHECK(terminal.read_until("device,pci_bus_id,").ends_with("device,pci_bus_id,"));
  (void)terminal.read_until(kPrompt);
  CHECK(terminal.end_input() == 0);
}

TEST_CASE("mpsctl shows no prompt where its output is no terminal") {
  Broker broker("serve");
  CHECK(run("echo get_server_list | " MPSSHIM_TEST_CTL " --pipe-dir '" + broker.dir + "'").text == broker.ctl("get_server_list").text);
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
      {"quit --now -t 5", 1, "mpsctl: -t and --now exclude each other: usage: quit [-t SECONDS | --now] [--json]\n"},
      {"--json help", 1, "mpsctl: help has no option \"--json\": usage: help\n"},
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

TEST_CASE("options of NVIDIA's later versions: the same service by their names, versions of the interface, and an end") {
  for (const std::string words : {"-m -p 3", "--multiuser --protocol 2"}) {
    INFO(words);
    Broker broker("serve", words);
    REQUIRE(broker.started.status == 0);
    CHECK(broker.ctl("start_server -uid 12345").text.find("is started with that user's first client") != std::string::npos);
    CHECK(broker.ctl("-p 3 server list --csv").text == broker.ctl("--protocol 2 servers --csv").text);
    CHECK(broker.ctl("-q ps").text == "mpsctl: --quit takes no command and no form: see mpsctl --help\n");
    CHECK(broker.ctl("-q ps").status == 2);
    CHECK(broker.ctl("--json -q").status == 2);
    CHECK(broker.serves());
    CHECK(broker.ctl(words.starts_with("-m") ? "-q" : "--quit").status == 0);
    CHECK_FALSE(broker.serves());
  }
  for (const std::string wrong : {"1", "4", "three", "-1", "''"}) {
    INFO(wrong);
    const Outcome refused = Broker("serve", "-p " + wrong).started;
    CHECK(refused.status == 2);
    CHECK(std::count(refused.text.begin(), refused.text.end(), '\n') == 1);
    CHECK(run(MPSSHIM_TEST_CTL " -p " + wrong + " ps").status == 2);
  }
}

TEST_CASE("the variable of a version of NVIDIA's interface is told where it is none") {
  for (const std::string value : {"2", "3", "4", "x"}) {
    REQUIRE(setenv("CUDA_MPS_PROTOCOL_VERSION", value.c_str(), 1) == 0);
    Broker broker("serve");
    unsetenv("CUDA_MPS_PROTOCOL_VERSION");
    REQUIRE(broker.started.status == 0);
    const std::string told = "CUDA_MPS_PROTOCOL_VERSION: \"" + value + "\" is no version (2 or 3)";
    CHECK((broker.log().find(told) != std::string::npos) == (value == "4" || value == "x"));
    CHECK(broker.log().find("without effect") == std::string::npos);
    CHECK(broker.ctl("server list").status == 0);
  }
}

TEST_CASE("a broker for static partitions says so of commands that set percentages") {
  for (const char* option : {"-S", "--static-partitioning"}) {
    Broker broker("serve", option);
    REQUIRE(broker.started.status == 0);
    CHECK(broker.ctl("lspart").status == 0);
    const Outcome refused = broker.ctl("set_default_active_thread_percentage 50");
    CHECK(refused.status == 1);
    CHECK(refused.text.find("static partitions, in which percentages mean nothing") != std::string::npos);
  }
}
