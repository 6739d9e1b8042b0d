// SPDX-License-Identifier: Apache-2.0
#include "broker/journal.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace mpsshim::broker {

namespace {

constexpr int kWarning = 4;

// A field ends with its line; one of several lines would have another form.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::ranges::replace(line, '\n', ' ');
  return line;
}

}  // namespace

Journal::Journal(std::string path) : path_(std::move(path)), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}

bool Journal::send(int priority, std::string_view log, std::string_view from, std::string_view line) const {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path_.size() >= sizeof name.sun_path) {
    errno = ENAMETOOLONG;
    return false;
  }
  std::ranges::copy(path_, name.sun_path);
  const std::string fields = fmt::format("MESSAGE={}\nPRIORITY={}\nSYSLOG_IDENTIFIER=mpsbroker\nMPSSHIM_LOG={}\nMPSSHIM_FROM={}\n", one_line(line),
                                         priority, log, one_line(from));
  const auto* const where = reinterpret_cast<const sockaddr*>(&name);
  return sendto(socket_.get(), fields.data(), fields.size(), MSG_DONTWAIT | MSG_NOSIGNAL, where, sizeof name) == static_cast<ssize_t>(fields.size());
}

bool Journal::write(int priority, std::string_view log, std::string_view from, std::string_view line) {
  const int before = errno;
  const std::lock_guard lock(mutex_);
  if (lost_ != 0) {
    const std::string told = fmt::format("{} line{} before this one could not be written.", lost_, lost_ == 1 ? "" : "s");
    if (send(kWarning, log, from, told)) lost_ = 0;
  }
  if (lost_ == 0 && send(priority, log, from, line)) {
    errno = before;
    return true;
  }
  ++lost_;
  return false;
}

}  // namespace mpsshim::broker
