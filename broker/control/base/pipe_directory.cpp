// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/pipe_directory.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/handshake.hpp"

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

}  // namespace

std::string choose_pipe_directory(const std::string& option) {
  if (!option.empty()) return option;
  if (const std::string directory = environment("CUDA_MPS_PIPE_DIRECTORY"); !directory.empty()) return directory;
  if (const std::string directory = environment("XDG_RUNTIME_DIR"); !directory.empty()) return directory + "/mpsshim";
  return fmt::format("/tmp/mpsshim-{}", geteuid());
}

std::optional<PipeDirectory> PipeDirectory::claim(const std::string& path, std::string& why) {
  PipeDirectory directory;
  std::error_code error;
  directory.path_ = std::filesystem::absolute(path, error).string();
  std::filesystem::create_directories(std::filesystem::path(directory.path_).parent_path(), error);
  if (mkdir(directory.path_.c_str(), 0700) != 0 && errno != EEXIST) {
    why = fmt::format("the pipe directory {} cannot be made ({}): name another with --pipe-dir", directory.path_, std::strerror(errno));
    return std::nullopt;
  }
  struct stat status {};
  if (stat(directory.path_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
    why = fmt::format("{} is not a directory of uid {}: name another with --pipe-dir", directory.path_, geteuid());
    return std::nullopt;
  }
  directory.lock_ = proto::FileDescriptor(open((directory.path_ + "/mpsbroker.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!directory.lock_.valid()) {
    why = fmt::format("the lock file in {} cannot be opened ({}): name another directory with --pipe-dir", directory.path_, std::strerror(errno));
    return std::nullopt;
  }
  if (flock(directory.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
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
