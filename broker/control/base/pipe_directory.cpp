// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/pipe_directory.hpp"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/handshake.hpp"
#include "proto/pipe_directory.hpp"

namespace mpsshim::broker::control {

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The holder has written its pid into the file.
std::string holder_of(const proto::FileDescriptor& lock) {
  char text[32] = {};
  const ssize_t length = pread(lock.get(), text, sizeof text - 1, 0);
  return length > 0 ? std::string(text, strcspn(text, "\n")) : "unknown";
}

constexpr std::chrono::milliseconds kLockLook{10};
constexpr std::chrono::seconds kEndLimit{15};  // of a broker that ends: executors are given one second

// Who has the lock and no socket ends, or has just begun. Nothing else is waited for.
bool take_lock(const proto::FileDescriptor& lock, const std::string& control_socket) {
  const auto until = std::chrono::steady_clock::now() + kEndLimit;
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || access(control_socket.c_str(), F_OK) == 0 || std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kLockLook);
  }
  return true;
}

std::string named_directory(const std::string& option) { return option.empty() ? environment("CUDA_MPS_PIPE_DIRECTORY") : option; }

}  // namespace

std::string choose_pipe_directory(const std::string& option) {
  const std::string named = named_directory(option);
  std::string runtime = environment("XDG_RUNTIME_DIR");
  if (access(runtime.c_str(), W_OK | X_OK) != 0) runtime.clear();  // batch systems carry it to machines that have no such folder
  return proto::directory_to_make({named, runtime, geteuid()});
}

std::vector<std::string> pipe_directories_to_search(const std::string& option) {
  const std::string named = named_directory(option);
  const std::string runtime = environment("XDG_RUNTIME_DIR");
  return proto::directories_to_search({named, runtime, geteuid()});
}

std::optional<PipeDirectory> PipeDirectory::claim(const std::string& path, std::string& why, Guests guests) {
  PipeDirectory directory;
  std::error_code error;
  directory.path_ = std::filesystem::absolute(path, error).string();
  std::filesystem::create_directories(std::filesystem::path(directory.path_).parent_path(), error);
  const bool is_new = mkdir(directory.path_.c_str(), 0700) == 0;
  if (!is_new && errno != EEXIST) {
    why = fmt::format("the pipe directory {} cannot be made ({}): name another with --pipe-dir", directory.path_, std::strerror(errno));
    return std::nullopt;
  }
  struct stat status {};
  if (stat(directory.path_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
    why = fmt::format("{} is not a directory of uid {}: name another with --pipe-dir", directory.path_, geteuid());
    return std::nullopt;
  }
  if (is_new && guests == Guests::all_users) chmod(directory.path_.c_str(), 0755);
  directory.lock_ = proto::FileDescriptor(open((directory.path_ + "/mpsbroker.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!directory.lock_.valid()) {
    why = fmt::format("the lock file in {} cannot be opened ({}): name another directory with --pipe-dir", directory.path_, std::strerror(errno));
    return std::nullopt;
  }
  if (!take_lock(directory.lock_, directory.control_socket())) {
    why = fmt::format("a broker (pid {}) serves {} already: end it with `mpsctl quit`, or name another directory with --pipe-dir",
                      holder_of(directory.lock_), directory.path_);
    return std::nullopt;
  }
  const std::string pid = fmt::format("{}\n", getpid());
  if (ftruncate(directory.lock_.get(), 0) != 0 || pwrite(directory.lock_.get(), pid.data(), pid.size(), 0) < 0) {
    why = fmt::format("the lock file in {} cannot be written ({})", directory.path_, std::strerror(errno));
    return std::nullopt;
  }
  return directory;
}

PipeDirectory PipeDirectory::adopt(const std::string& path, proto::FileDescriptor lock) {
  PipeDirectory directory;
  directory.path_ = path;
  directory.lock_ = std::move(lock);
  return directory;
}

std::string PipeDirectory::client_socket() const { return path_ + "/" + proto::kClientSocketName; }
std::string PipeDirectory::control_socket() const { return path_ + "/" + proto::kControlSocketName; }

}  // namespace mpsshim::broker::control
