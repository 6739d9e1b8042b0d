// SPDX-License-Identifier: Apache-2.0
#include "broker/control/process_identity.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker/printable.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::size_t kLongestCommand = 200;
}

std::string command_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::string command(kLongestCommand, '\0');
  file.read(command.data(), static_cast<std::streamsize>(command.size()));
  command.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::ranges::replace(command, '\0', ' ');
  return command.empty() ? "?" : printable(command);
}

Program program_of(pid_t pid, uid_t uid) {
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  std::error_code error;
  struct stat file {};
  Program program;
  program.uid = uid;
  const std::string path = std::filesystem::read_symlink(link, error).string();
  if (error || stat(link.c_str(), &file) != 0) return program;
  program.path = printable(path);
  program.device = file.st_dev;
  program.inode = file.st_ino;
  return program;
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

}  // namespace mpsshim::broker::control
