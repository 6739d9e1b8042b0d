// SPDX-License-Identifier: Apache-2.0
// Lines to a journal that the test plays: its socket is a datagram's, as systemd's is.
#include "broker/journal.hpp"

#include <array>
#include <chrono>
#include <filesystem>
#include <optional>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker/log.hpp"
#include "broker/printable.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;

namespace {

class PlayedJournal {
 public:
  PlayedJournal() : path("/tmp/mpsshim-journal-" + std::to_string(getpid()) + ".sock") { begin(); }
  ~PlayedJournal() { end(); }
  void begin() {
    socket_ = proto::FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path.copy(name.sun_path, sizeof name.sun_path - 1);
    REQUIRE(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  }
  void end() {
    socket_.reset();
    unlink(path.c_str());
  }
  // Nothing: none has come.
  std::optional<std::string> take() const {
    std::array<char, 16'384> buffer{};
    const ssize_t bytes = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    return bytes < 0 ? std::nullopt : std::optional(std::string(buffer.data(), static_cast<std::size_t>(bytes)));
  }

  const std::string path;

 private:
  proto::FileDescriptor socket_;
};

std::string entry(const std::string& message, int priority, const std::string& log, const std::string& from) {
  return "MESSAGE=" + message + "\nPRIORITY=" + std::to_string(priority) + "\nSYSLOG_IDENTIFIER=mpsbroker\nMPSSHIM_LOG=" + log +
         "\nMPSSHIM_FROM=" + from + "\n";
}

}  // namespace

TEST_CASE("journal: a line is one entry with its fields, and cannot be made two") {
  const PlayedJournal played;
  Journal journal(played.path);
  CHECK(journal.write(4, "control", "Control", "Session 1 (pid 2, a=b): äöü."));
  CHECK(played.take() == entry("Session 1 (pid 2, a=b): äöü.", 4, "control", "Control"));
  CHECK(journal.write(6, "server", "Executor 0", "one\nPRIORITY=0\n"));
  CHECK(played.take() == entry("one PRIORITY=0 ", 6, "server", "Executor 0"));
  CHECK(journal.write(6, "server", "x", std::string(kLongestLogLine, 'y')));
  CHECK(played.take().value().size() > kLongestLogLine);
  CHECK_FALSE(played.take());
}

TEST_CASE("journal: one that does not read costs lines and nobody's time, and is told how many") {
  const PlayedJournal played;
  Journal journal(played.path);
  const auto began = std::chrono::steady_clock::now();
  unsigned taken = 0;
  while (taken < 100'000 && journal.write(6, "control", "Control", "line")) ++taken;
  REQUIRE(taken > 0);
  REQUIRE(taken < 100'000);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(journal.write(6, "control", "Control", "lost"));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  while (played.take()) {
  }
  CHECK(journal.write(6, "control", "Control", "again"));
  CHECK(played.take() == entry("5 lines before this one could not be written.", 4, "control", "Control"));
  CHECK(played.take() == entry("again", 6, "control", "Control"));
}

TEST_CASE("journal: one that is started anew is found again, and one that was never there is told") {
  PlayedJournal played;
  Journal journal(played.path);
  CHECK(journal.write(6, "control", "Control", "one"));
  played.end();
  errno = 0;
  CHECK_FALSE(journal.write(6, "control", "Control", "two"));
  CHECK(errno == ENOENT);
  played.begin();
  CHECK(journal.write(6, "control", "Control", "three"));
  CHECK(played.take() == entry("1 line before this one could not be written.", 4, "control", "Control"));
  CHECK(played.take() == entry("three", 6, "control", "Control"));
  Journal none("/" + std::string(200, 'x'));
  CHECK_FALSE(none.write(6, "control", "Control", "one"));
  CHECK(errno == ENAMETOOLONG);
}

TEST_CASE("journal: what is logged goes there with its level, made printable, beside the files") {
  const PlayedJournal played;
  const std::string file = played.path + ".log";
  REQUIRE(
      open_log({.path = file, .identity = "Test", .to_standard_error = false, .least = LogLevel::info, .journal = played.path, .log = "control"}));
  log_debug("not at all");
  log_warning("a {}", "\x1b[31m\nname");
  log_error("an error");
  log_server(4711, "a client");
  CHECK(played.take() == entry("a \\x1b[31m\\x0aname", 4, "control", "Test"));
  CHECK(played.take() == entry("an error", 3, "control", "Test"));
  CHECK(played.take() == entry("a client", 6, "server", "Server 4711"));
  CHECK_FALSE(played.take());
  CHECK(std::filesystem::file_size(file) > 0);
  std::filesystem::remove(file);
  (void)open_log({.path = "", .identity = "Broker", .to_standard_error = true, .least = LogLevel::info});
  log_info("no more");
  CHECK_FALSE(played.take());
}
