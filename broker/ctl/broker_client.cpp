// SPDX-License-Identifier: Apache-2.0
#include "broker/ctl/broker_client.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include "broker/control/base/process_identity.hpp"
#include "proto/handshake.hpp"

namespace mpsshim::broker::ctl {

namespace {

using Clock = std::chrono::steady_clock;
using Limit = std::optional<std::chrono::milliseconds>;

constexpr std::chrono::milliseconds kLockLook{20};

int left_of(const Limit& limit, Clock::time_point began) {
  if (!limit) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*limit - (Clock::now() - began)).count();
  return left > 0 ? static_cast<int>(left) : 0;
}

// The broker has it as long as it lives.
bool is_locked(const std::string& directory) {
  const proto::FileDescriptor lock(open((directory + "/mpsbroker.lock").c_str(), O_RDWR | O_CLOEXEC));
  return lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
}

bool connects(const std::string& path, Trust trust) {
  const proto::Socket socket = proto::Socket::connect_to(path);
  if (!socket.valid() || trust == Trust::anybody) return socket.valid();
  const uid_t owner = socket.peer().uid;
  if (owner == 0 || owner == geteuid()) return true;
  errno = ENOENT;
  return false;
}

}  // namespace

Reach reach_of(const std::string& directory, Trust trust) {
  if (connects(directory + "/" + proto::kControlSocketName, trust)) return Reach::obeys;
  const int error = errno;
  if (connects(directory + "/" + proto::kClientSocketName, trust)) return Reach::serves;
  if (errno != EACCES && errno != EPERM) errno = error;
  return errno == EACCES || errno == EPERM ? Reach::forbidden : Reach::absent;
}

Found find_broker(const std::vector<std::string>& directories, Trust trust) {
  Found none;
  for (const std::string& directory : directories) {
    const Reach reach = reach_of(directory, trust);
    const int error = errno;
    if (reach == Reach::obeys || reach == Reach::serves) return {directory, reach, 0};
    if (none.directory.empty() || (reach == Reach::forbidden && none.reach == Reach::absent)) none = {directory, reach, error};
  }
  return none;
}

Answer BrokerClient::ask(const std::string& command, Limit limit) {
  const auto began = Clock::now();
  const proto::Socket socket = proto::Socket::connect_to(directory_ + "/" + proto::kControlSocketName);
  if (!socket.valid()) return {false, false, absence(directory_, errno)};
  if (const pid_t pid = socket.peer().pid; pid > 0) process_ = control::open_pidfd(pid);
  const Answer silence{false, false, fmt::format("the broker in {} does not answer: see its control.log", directory_)};
  if (socket.send(std::as_bytes(std::span(command))) != proto::SocketStatus::ok) return silence;
  std::array<std::byte, proto::kMaxMessageBytes> buffer;
  std::string answer;
  while (socket.wait_readable(left_of(limit, began))) {
    std::size_t bytes = 0;
    proto::ReceivedFds fds;
    if (socket.receive(buffer, bytes, fds) == proto::SocketStatus::ok) {
      answer.append(reinterpret_cast<const char*>(buffer.data()), bytes);
      continue;
    }
    if (answer.empty()) return silence;
    const std::size_t line = answer.find('\n');
    return {true, answer.substr(0, line) == "ok", line == std::string::npos ? "" : answer.substr(line + 1)};
  }
  return silence;
}

bool BrokerClient::await_end(Limit limit) const {
  const auto began = Clock::now();
  if (process_.valid()) {
    pollfd process{process_.get(), POLLIN, 0};
    int ready = 0;
    do {
      ready = poll(&process, 1, left_of(limit, began));
    } while (ready < 0 && errno == EINTR);
    return ready > 0;
  }
  while (is_locked(directory_)) {
    if (left_of(limit, began) == 0) return false;
    std::this_thread::sleep_for(kLockLook);
  }
  return true;
}

std::string group_of(const std::string& directory) {
  const auto has = [](const std::string& folder, const char* socket) { return access((folder + '/' + socket).c_str(), F_OK) == 0; };
  const std::size_t slash = directory.rfind('/');
  if (slash == std::string::npos || !has(directory.substr(0, slash), proto::kControlSocketName)) return "";
  const bool is_one = has(directory, proto::kClientSocketName) && !has(directory, proto::kControlSocketName);
  return is_one ? directory.substr(slash + 1) : "";
}

std::string absence(const std::string& directory, int error) {
  if (error == EACCES || error == EPERM) {
    return fmt::format("user {} may not ask the broker in {} ({}): commands are for its own user and root", geteuid(), directory,
                       std::strerror(error));
  }
  if (const std::string group = group_of(directory); !group.empty()) {
    return fmt::format("programs come in by {}, and no commands: it is group {}'s, so name the broker's own, {}, with --pipe-dir", directory, group,
                       directory.substr(0, directory.rfind('/')));
  }
  return fmt::format("no broker serves {} ({}): start one with mpsbroker -d, or name its directory with --pipe-dir", directory, std::strerror(error));
}

}  // namespace mpsshim::broker::ctl
