// SPDX-License-Identifier: Apache-2.0
#include "broker/run/starter.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/control/server/commands.hpp"
#include "broker/ctl/broker_client.hpp"

namespace mpsshim::broker::run {

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kHoldLimit{30'000};  // the control process never waits; a loaded machine may make it
constexpr milliseconds kEndLimit{15'000};   // of a broker that is ending
constexpr std::chrono::seconds kGuardLimit{90};
constexpr milliseconds kGuardLook{10};
constexpr int kTries = 3;  // a broker may end between its start and our word

enum class Held { yes, ending, no };

// Another user's serves, takes no commands of ours, and does not end by our doing.
Held hold(const ctl::Found& found, pid_t holder, std::string& why) {
  if (found.reach == ctl::Reach::serves) return Held::yes;
  ctl::BrokerClient broker(found.directory);
  // The kernel translates who asks between pid namespaces; a number it does not.
  const ctl::Answer answer = broker.ask(holder == getpid() ? "hold" : fmt::format("hold {}", holder), kHoldLimit);
  if (answer.ok) return Held::yes;
  why = answer.text;
  if (answer.was_asked && answer.text != control::kBrokerIsEnding) return Held::no;
  (void)broker.await_end(kEndLimit);
  return Held::ending;
}

// One that nobody has named may be anybody's who was there first.
bool make_folder(const std::string& path, bool is_named, std::string& why) {
  const mode_t before = umask(077);
  std::error_code error;
  fs::create_directories(path, error);
  umask(before);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    why = fmt::format("the pipe directory {} cannot be made ({}): name another with --pipe-dir", path, std::strerror(errno));
    return false;
  }
  for (fs::path folder = path; !is_named && folder.has_relative_path(); folder = folder.parent_path()) {
    if (folder == "/tmp" || folder == "/run" || stat(folder.c_str(), &status) != 0) break;
    if (status.st_uid == geteuid() || status.st_uid == 0) continue;
    why = fmt::format("{} belongs to another user: name a directory with --pipe-dir", folder.string());
    return false;
  }
  return true;
}

proto::FileDescriptor take_guard(const std::string& directory, std::string& why) {
  const std::string path = directory + "/mpsrun.guard";
  proto::FileDescriptor guard(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!guard.valid()) {
    why = fmt::format("no broker serves {}, and none can be started there ({}): name another directory with --pipe-dir", directory,
                      std::strerror(errno));
    return guard;
  }
  const auto until = std::chrono::steady_clock::now() + kGuardLimit;
  while (flock(guard.get(), LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() >= until) {
      why = fmt::format("another mpsrun has held {} for {} s: is its broker stuck? See {}/log", path, kGuardLimit.count(), directory);
      guard.reset();
      return guard;
    }
    std::this_thread::sleep_for(kGuardLook);
  }
  return guard;
}

std::string text_of(int fd) {
  std::string text;
  char buffer[512];
  ssize_t length = 0;
  for (off_t at = 0; (length = pread(fd, buffer, sizeof buffer, at)) > 0; at += length) text.append(buffer, static_cast<std::size_t>(length));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// False: what it said is in `why`. It returns when the broker serves, or does not.
bool start(const Parts& parts, const std::string& directory, const BrokerWish& wish, std::string& why) {
  std::vector<std::string> words = {parts.broker, "-d",        "--driver",         wish.driver,        "--pipe-dir",
                                    directory,    "--log-dir", directory + "/log", "--exit-when-idle", std::to_string(wish.idle_s)};
  std::vector<std::string> environment = broker_environment();
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& text : texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  };
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> envp = pointers(environment);
  const proto::FileDescriptor said(memfd_create("mpsbroker's words", MFD_CLOEXEC));
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (dup2(null, STDIN_FILENO) < 0 || dup2(said.get(), STDOUT_FILENO) < 0 || dup2(said.get(), STDERR_FILENO) < 0 || chdir("/") != 0) _exit(126);
    // Whatever a launcher has set for its ranks: a broker takes signals as any program does.
    for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD, SIGUSR1, SIGUSR2}) signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  const std::string text = child > 0 ? text_of(said.get()) : std::strerror(errno);
  why =
      fmt::format("{}\nmpsrun: the broker ended at its start; it was: {} -d --driver {} --pipe-dir {}",
                  text.empty() ? "mpsbroker: it said nothing; see control.log in " + directory + "/log" : text, parts.broker, wish.driver, directory);
  return false;
}

}  // namespace

std::string have_broker(const Parts& parts, const Place& place, const BrokerWish& wish, std::string& why) {
  const ctl::Trust trust = place.is_named ? ctl::Trust::anybody : ctl::Trust::user_and_root;
  for (int tries = 0; tries < kTries; ++tries) {
    const auto look = [&] { return ctl::find_broker(place.search, trust); };
    const auto is_there = [](const ctl::Found& found) { return found.reach == ctl::Reach::obeys || found.reach == ctl::Reach::serves; };
    ctl::Found found = look();
    if (is_there(found)) {
      const Held held = hold(found, wish.holder, why);
      if (held == Held::yes) return found.directory;
      if (held == Held::no) return "";
    }
    if (found.reach == ctl::Reach::forbidden && place.is_named) {
      why = ctl::absence(found.directory, found.error);
      return "";
    }
    if (!make_folder(place.make, place.is_named, why)) return "";
    const proto::FileDescriptor guard = take_guard(place.make, why);
    if (!guard.valid()) return "";
    if (is_there(look())) continue;  // another mpsrun has started it meanwhile
    if (!start(parts, place.make, wish, why)) return "";
    found = {place.make, ctl::Reach::obeys, 0};
    if (hold(found, wish.holder, why) == Held::yes) return found.directory;
  }
  if (why.empty()) why = fmt::format("the broker in {} has ended again and again before it could be used: see its control.log", place.make);
  return "";
}

}  // namespace mpsshim::broker::run
