// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/service_manager.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker/log.hpp"
#include "broker/printable.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr int kFirstPassed = 3;  // SD_LISTEN_FDS_START
constexpr char kClientsName[] = "clients";
constexpr std::chrono::milliseconds kRetry{100};
constexpr std::chrono::milliseconds kLeastInterval{10};
constexpr std::size_t kMostWaiting = 16;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<std::uint64_t> number(const std::string& text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || rest != end) return std::nullopt;
  return value;
}

bool is_for_this_process(const std::string& pid) { return number(pid) == static_cast<std::uint64_t>(getpid()); }

int socket_option(int fd, int option) {
  int value = -1;
  socklen_t length = sizeof value;
  return getsockopt(fd, SOL_SOCKET, option, &value, &length) == 0 ? value : -1;
}

std::string path_of(int fd) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 || address.sun_family != AF_UNIX) return "";
  const std::size_t bytes = length - std::min<std::size_t>(length, offsetof(sockaddr_un, sun_path));
  return {address.sun_path, strnlen(address.sun_path, bytes)};
}

// A directory may have two names, such as /var/run and /run.
bool is_same_place(const std::filesystem::path& one, const std::filesystem::path& other) {
  std::error_code error;
  return one.filename() == other.filename() && (one == other || std::filesystem::equivalent(one.parent_path(), other.parent_path(), error));
}

// "": it is what the broker would have made itself.
std::string fault_of(int fd, const std::string& path) {
  if (socket_option(fd, SO_DOMAIN) != AF_UNIX || socket_option(fd, SO_TYPE) != SOCK_SEQPACKET || socket_option(fd, SO_ACCEPTCONN) != 1) {
    return "is not a listening Unix socket of packets: write ListenSequentialPacket= and Accept=no";
  }
  const std::string own = path_of(fd);
  if (!is_same_place(own, path))
    return fmt::format("listens at \"{}\" and not at {}: make it the pipe directory's, or name another with --pipe-dir", printable(own), path);
  return "";
}

}  // namespace

bool has_passed_sockets() { return is_for_this_process(variable("LISTEN_PID")) && number(variable("LISTEN_FDS")).value_or(0) != 0; }

std::optional<proto::FileDescriptor> take_client_listener(const std::string& path, std::string& why) {
  const bool is_passed = has_passed_sockets();
  const std::uint64_t count = number(variable("LISTEN_FDS")).value_or(0);
  const std::string names = variable("LISTEN_FDNAMES");
  for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) unsetenv(name);
  if (!is_passed) return proto::FileDescriptor();
  if (count != 1 || names != kClientsName) {
    why = fmt::format("{} socket{} \"{}\" {} passed (LISTEN_FDNAMES), and a broker takes one, with FileDescriptorName={}", count,
                      count == 1 ? "" : "s", printable(names), count == 1 ? "was" : "were", kClientsName);
    return std::nullopt;
  }
  if (const std::string fault = fault_of(kFirstPassed, path); !fault.empty()) {
    why = fmt::format("the socket that was passed {}", fault);
    return std::nullopt;
  }
  // Under a number of its own: others are free for what is duplicated to a number below.
  proto::FileDescriptor listener(fcntl(kFirstPassed, F_DUPFD_CLOEXEC, kFirstPassed + 1));
  if (!listener.valid()) {
    why = fmt::format("the socket that was passed cannot be taken ({})", std::strerror(errno));
    return std::nullopt;
  }
  close(kFirstPassed);
  fcntl(listener.get(), F_SETFL, fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
  return listener;
}

ServiceManager::ServiceManager(EventLoop& loop) : loop_(loop), address_(variable("NOTIFY_SOCKET")) {
  const bool is_address =
      !address_.empty() && (address_.front() == '/' || address_.front() == '@') && address_.size() < sizeof sockaddr_un{}.sun_path;
  if (!is_address) {
    if (!address_.empty()) log_warning("NOTIFY_SOCKET={} is no address of a Unix socket: nothing is told to a service manager.", address_);
    address_.clear();
    return;
  }
  const std::string pid = variable("WATCHDOG_PID");
  if (!pid.empty() && !is_for_this_process(pid)) return;
  const std::optional<std::uint64_t> asked_us = number(variable("WATCHDOG_USEC"));
  if (!asked_us || *asked_us == 0) return;
  const auto half = std::chrono::milliseconds(std::min<std::uint64_t>(*asked_us / 2000, 3'600'000));
  watchdog_ = std::max(half, kLeastInterval);
  keep_watchdog();
}

void ServiceManager::keep_watchdog() {
  send("WATCHDOG=1");
  watchdog_timer_ = loop_.after(watchdog_, [this] { keep_watchdog(); });
}

void ServiceManager::ready(std::string_view status) {
  if (!is_stopping_) send(fmt::format("READY=1\nSTATUS={}", printable(status)));
}

// With the time, a manager that has asked for it by a signal knows that this is the answer to it.
void ServiceManager::reloading() {
  if (is_stopping_) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  send(fmt::format("RELOADING=1\nMONOTONIC_USEC={}",
                   std::uint64_t{1'000'000} * static_cast<std::uint64_t>(now.tv_sec) + static_cast<std::uint64_t>(now.tv_nsec) / 1000));
}

void ServiceManager::stopping() {
  if (!std::exchange(is_stopping_, true)) send("STOPPING=1");
}

void ServiceManager::status(std::string_view sentence) { send(fmt::format("STATUS={}", printable(sentence))); }

void ServiceManager::send(std::string state) {
  if (address_.empty()) return;
  if (waiting_.size() >= kMostWaiting) {
    if (state == "WATCHDOG=1") return;  // the next one comes soon
    waiting_.pop_front();
  }
  waiting_.push_back(std::move(state));
  send_waiting();
}

void ServiceManager::send_waiting() {
  const proto::FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, address_.data(), address_.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  while (!waiting_.empty()) {
    const std::string& state = waiting_.front();
    if (sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address), length) < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) {
        retry_ = loop_.after(kRetry, [this] { send_waiting(); });
        return;
      }
      log_warning("The service manager at {} is not told \"{}\" ({}), and nothing more.", address_, state, std::strerror(errno));
      address_.clear();
      watchdog_timer_.reset();
      waiting_.clear();
      return;
    }
    waiting_.pop_front();
  }
}

}  // namespace mpsshim::broker::control
