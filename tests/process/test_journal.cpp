// SPDX-License-Identifier: Apache-2.0
// mpsbroker --log-to: a journal that the test plays, files, or both.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/process/refused_start.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

// Read as it comes, as systemd's is: some kernels keep no more than ten entries for a reader.
class PlayedJournal {
 public:
  PlayedJournal() : path(folder_.path() / "journal"), fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    if (bind(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) throw std::runtime_error("no socket at " + path);
    reader_ = std::jthread([this](const std::stop_token& stop) { read(stop); });
  }
  ~PlayedJournal() {
    reader_.request_stop();
    shutdown(fd_, SHUT_RD);
    reader_.join();
    close(fd_);
  }
  PlayedJournal(const PlayedJournal&) = delete;
  // Whether an entry with all of that has come, so far.
  [[nodiscard]] bool has(const std::vector<std::string>& parts) {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(entries_, [&](const std::string& entry) {
      return std::ranges::all_of(parts, [&](const std::string& part) { return entry.find(part) != std::string::npos; });
    });
  }
  [[nodiscard]] std::string all() {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const std::string& entry : entries_) text += entry + "\n";
    return text;
  }

 private:
  void read(const std::stop_token& stop) {
    std::vector<char> buffer(16'384);
    while (!stop.stop_requested()) {
      const ssize_t bytes = recv(fd_, buffer.data(), buffer.size(), 0);
      if (bytes <= 0) continue;  // the end, or a signal
      const std::lock_guard lock(mutex_);
      entries_.emplace_back(buffer.data(), static_cast<std::size_t>(bytes));
    }
  }

  TemporaryFolder folder_;

 public:
  const std::string path;

 private:
  const int fd_;
  std::mutex mutex_;
  std::vector<std::string> entries_;
  std::jthread reader_;
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
    const bool is_told = eventually(std::chrono::seconds(10), [&] { return journal.has({"has taken over", "MPSSHIM_LOG=control\n"}); });
    INFO(journal.all());
    CHECK(is_told);
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
    const Outcome outcome = try_to_begin(tried.words);
    INFO(outcome.explain());
    CHECK(outcome.exit_code == tried.status);
    CHECK(outcome.errors.find(tried.told) != std::string::npos);
    CHECK(std::count(outcome.errors.begin(), outcome.errors.end(), '\n') == 1);
  }
}
