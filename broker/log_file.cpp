// SPDX-License-Identifier: Apache-2.0
#include "broker/log_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mpsshim::broker {

void LogFile::open_again() {
  proto::FileDescriptor file(open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (file.valid()) file_ = std::move(file);
}

void LogFile::reopen() {
  const std::lock_guard lock(mutex_);
  open_again();
}

bool LogFile::has_moved() const {
  struct stat open_file {};
  struct stat named {};
  if (stat(path_.c_str(), &named) != 0) return errno == ENOENT;
  return fstat(file_.get(), &open_file) != 0 || named.st_ino != open_file.st_ino || named.st_dev != open_file.st_dev;
}

bool LogFile::append(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = write(file_.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

void LogFile::sink_it_(const spdlog::details::log_msg& message) {
  const int before = errno;
  if (has_moved()) open_again();
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  std::string text(line.data(), line.size());
  if (lost_ != 0) text.insert(0, fmt::format("{} line{} before this one could not be written.\n", lost_, lost_ == 1 ? "" : "s"));
  if (append(text)) {
    lost_ = 0;
  } else if (lost_++ == 0) {
    const std::string complaint =
        fmt::format("mpsbroker: the log {} cannot be written ({}): lines are lost until it can.\n", path_, std::strerror(errno));
    (void)!write(STDERR_FILENO, complaint.data(), complaint.size());
  }
  errno = before;
}

}  // namespace mpsshim::broker
