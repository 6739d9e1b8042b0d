// SPDX-License-Identifier: Apache-2.0
// mpsbroker --log-to: a journal that the test plays, files, or both.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

class PlayedJournal {
 public:
  PlayedJournal() : path(folder_.path() / "journal"), fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    if (bind(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) throw std::runtime_error("no socket at " + path);
  }
  ~PlayedJournal() { close(fd_); }
  PlayedJournal(const PlayedJournal&) = delete;
  // Whether an entry with all of that has come, so far.
  bool has(const std::vector<std::string>& parts) {
    char buffer[16'384];
    ssize_t bytes = 0;
    while ((bytes = recv(fd_, buffer, sizeof buffer, 0)) >= 0) entries_.emplace_back(buffer, static_cast<std::size_t>(bytes));
    return std::ranges::any_of(entries_, [&](const std::string& entry) {
      return std::ranges::all_of(parts, [&](const std::string& part) { return entry.find(part) != std::string::npos; });
    });
  }
  [[nodiscard]] std::string all() const {
    std::string text;
    for (const std::string& entry : entries_) text += entry + "\n";
    return text;
  }

 private:
  TemporaryFolder folder_;

 public:
  const std::string path;

 private:
  int fd_;
  std::vector<std::string> entries_;
};

}  // namespace

TEST_CASE("journal: a broker's and its executors' lines, in place of files or beside them, also after a restart") {
  for (const char* target : {"journald", "both"}) {
    INFO(target);
    PlayedJournal journal;
    BrokerOptions options;
    options.arguments = {"--log-to", target, "--test-journal", journal.path};
    const BrokerFixture broker(options);
    Client client(broker);
    const std::string pid = std::to_string(client.program().pid());
    REQUIRE(client.ask("own") == "ok");
    CHECK(eventually(std::chrono::seconds(10), [&] { return journal.has({"MESSAGE=Broker ", "MPSSHIM_LOG=control\n", "MPSSHIM_FROM=Control\n"}); }));
    CHECK(eventually(std::chrono::seconds(10), [&] {
      return journal.has({"MESSAGE=New client {" + pid, "MPSSHIM_LOG=server\n", "MPSSHIM_FROM=Server "});
    }));
    CHECK(eventually(std::chrono::seconds(10), [&] { return journal.has({"MESSAGE=Executor of device 0 ready", "MPSSHIM_FROM=Executor 0\n"}); }));
    REQUIRE(broker.ctl({"restart"}).ok());
    CHECK(eventually(std::chrono::seconds(10), [&] { return journal.has({"has taken over", "MPSSHIM_LOG=control\n"}); }));
    INFO(journal.all());
    CHECK(std::filesystem::exists(std::filesystem::path(broker.pipe_dir()).parent_path() / "log" / "control.log") == (std::string(target) == "both"));
    CHECK(client.ask("own") == "ok");
  }
}

TEST_CASE("journal: a broker that finds none does not begin, and says so in one line") {
  const struct {
    std::vector<std::string> words;
    int status;
    const char* told;
  } cases[] = {{{"--log-to", "journald", "--test-journal", "/nowhere/to/be/found"}, 1, "there is no journal at /nowhere/to/be/found"},
               {{"--log-to", "syslog"}, 2, "\"syslog\" is none of files, journald and both"}};
  for (const auto& tried : cases) {
    const TemporaryFolder folder;
    ProgramOptions options;
    options.arguments = {"-f", "--driver", "cpu", "--pipe-dir", folder.path()};
    options.arguments.insert(options.arguments.end(), tried.words.begin(), tried.words.end());
    const Outcome outcome = run_program(built_program("mpsbroker"), options, std::chrono::seconds(20));
    INFO(outcome.explain());
    CHECK(outcome.exit_code == tried.status);
    CHECK(outcome.errors.find(tried.told) != std::string::npos);
    CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
  }
}
