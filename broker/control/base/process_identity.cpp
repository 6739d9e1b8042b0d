// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/process_identity.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/printable.hpp"
#include "proto/mps_variables.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::size_t kLongestCommand = 200;
constexpr std::size_t kMostRead = 4'096;
constexpr unsigned kMostWords = 8;

// Each with a zero behind it.
std::string read_arguments(pid_t pid, std::size_t most_bytes) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::string arguments(most_bytes, '\0');
  file.read(arguments.data(), static_cast<std::streamsize>(arguments.size()));
  arguments.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return arguments;
}

}

std::string command_of(pid_t pid) {
  std::string command = read_arguments(pid, kLongestCommand);
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::ranges::replace(command, '\0', ' ');
  return command.empty() ? "?" : printable(command);
}

std::string leading_words_of(pid_t pid) {
  std::istringstream arguments(read_arguments(pid, kMostRead));
  std::string words, word;
  std::getline(arguments, word, '\0');  // its own name, which it may choose
  for (unsigned count = 0; count < kMostWords && std::getline(arguments, word, '\0'); ++count) {
    words += (count == 0 ? "" : " ") + word;
    if (!word.starts_with('-')) break;
  }
  return words.substr(0, kLongestCommand);
}

// Its name stands in parentheses before that, and may be anything.
pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(text.substr(end + 1));
  std::string state;
  pid_t parent = 0;
  return fields >> state >> parent ? parent : 0;
}

std::string unenforced_variables_of(pid_t pid) {
  constexpr std::size_t kMostEnvironment = 128 << 10;
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  std::string text(kMostEnvironment, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  std::istringstream entries(text);
  std::string entry;
  const std::string names = proto::unenforced_variables([&] {
    while (std::getline(entries, entry, '\0')) {
      if (!entry.empty()) return std::string_view(entry);
    }
    return std::string_view();
  });
  return printable(names.substr(0, kLongestCommand));
}

std::string pid_namespace_of(pid_t pid) {
  std::error_code error;
  const std::string name = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/ns/pid", error).string();  // "pid:[4026531836]"
  const std::size_t begin = name.find('['), end = name.find(']');
  return error || begin == std::string::npos || end == std::string::npos ? "-" : name.substr(begin + 1, end - begin - 1);
}

// Names of what has no path are the kernel's own; what has one begins with a slash.
bool is_pidfd(const proto::FileDescriptor& fd) {
  constexpr std::string_view kName = "anon_inode:[pidfd]";
  std::array<char, 64> name{};
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), name.data(), name.size());
  return length > 0 && std::string_view(name.data(), static_cast<std::size_t>(length)) == kName;
}

pid_t pid_of(const proto::FileDescriptor& pidfd) {
  std::ifstream file("/proc/self/fdinfo/" + std::to_string(pidfd.get()));
  std::string key;
  while (file >> key) {
    if (key == "Pid:") {
      pid_t pid = 0;
      file >> pid;
      return pid;
    }
  }
  return kNotAPidfd;
}

proto::FileDescriptor open_pidfd(pid_t pid) { return proto::FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

ChildProcess make_child(const std::function<void()>& become) {
  const pid_t parent = getpid();
  ChildProcess child;
  child.pid = fork();
  if (child.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);  // it died before the line above
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const int number : {SIGPIPE, SIGTERM, SIGHUP}) signal(number, SIG_DFL);
    signal(SIGINT, SIG_IGN);
    become();
    _exit(127);
  }
  if (child.pid < 0) return child;
  child.pidfd = open_pidfd(child.pid);
  if (child.pidfd.valid()) return child;
  const int error = errno;
  kill(child.pid, SIGKILL);
  waitpid(child.pid, nullptr, 0);
  child.pid = -1;
  errno = error;
  return child;
}

}  // namespace mpsshim::broker::control
