// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/metrics_address.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker/commands/parsed_command.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr int kWaiting = 16;  // connections that are not accepted yet

bool read_port(std::string_view text, std::uint16_t& port) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port != 0;
}

bool read_host(std::string host, MetricsAddress& address) {
  if (host.empty() || host == "localhost") host = "127.0.0.1";
  if (host.starts_with('[') && host.ends_with(']')) {
    address.is_v6 = true;
    return inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &address.v6) == 1;
  }
  return inet_pton(AF_INET, host.c_str(), &address.v4) == 1;
}

proto::FileDescriptor refuse(const MetricsAddress& address, std::string& why) {
  why = fmt::format("--metrics {}: nothing can listen there ({}): name another address", address.text, std::strerror(errno));
  return {};
}

proto::FileDescriptor listen_at_port(const MetricsAddress& address, std::string& why) {
  proto::FileDescriptor socket(::socket(address.is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int one = 1;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr = address.v4;
  v4.sin_port = htons(address.port);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = address.v6;
  v6.sin6_port = htons(address.port);
  const auto* const name = address.is_v6 ? reinterpret_cast<const sockaddr*>(&v6) : reinterpret_cast<const sockaddr*>(&v4);
  const socklen_t length = address.is_v6 ? sizeof v6 : sizeof v4;
  const bool listens = socket.valid() && setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                       (!address.is_v6 || setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) == 0) &&
                       bind(socket.get(), name, length) == 0 && listen(socket.get(), kWaiting) == 0;
  return listens ? std::move(socket) : refuse(address, why);
}

proto::FileDescriptor listen_at_path(const MetricsAddress& address, std::string& why) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.path.c_str(), address.path.size() + 1);  // parse_metrics_address() has looked
  const auto* const where = reinterpret_cast<const sockaddr*>(&name);
  proto::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return refuse(address, why);
  struct stat there {};
  if (lstat(address.path.c_str(), &there) == 0) {
    const proto::FileDescriptor caller(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    errno = EEXIST;
    if (!S_ISSOCK(there.st_mode) || !caller.valid()) return refuse(address, why);
    if (connect(caller.get(), where, sizeof name) == 0 || errno != ECONNREFUSED) {
      errno = EADDRINUSE;
      return refuse(address, why);
    }
    unlink(address.path.c_str());
  }
  const mode_t before = umask(0177);
  const bool is_bound = bind(socket.get(), where, sizeof name) == 0;
  const int error = errno;
  umask(before);
  errno = error;
  return is_bound && listen(socket.get(), kWaiting) == 0 ? std::move(socket) : refuse(address, why);
}

}  // namespace

bool MetricsAddress::is_loopback() const {
  if (!path.empty()) return true;
  return is_v6 ? IN6_IS_ADDR_LOOPBACK(&v6) : ntohl(v4.s_addr) >> 24 == 127;
}

std::optional<MetricsAddress> parse_metrics_address(const std::string& text, bool may_be_any, std::string& why) {
  MetricsAddress address;
  address.text = as_quoted(text);
  if (text.find('/') != std::string::npos) {
    address.path = text;
    constexpr std::size_t kRoom = sizeof(sockaddr_un::sun_path);
    if (text.starts_with('/') && text.size() < kRoom) return address;
    why = fmt::format("--metrics {}: the path of a socket begins with a slash and has at most {} bytes", address.text, kRoom - 1);
    return std::nullopt;
  }
  const std::size_t colon = text.rfind(':');
  const std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
  if ((colon == 0 || !read_host(host, address)) ||
      !read_port(std::string_view(text).substr(colon == std::string::npos ? 0 : colon + 1), address.port)) {
    why = fmt::format("--metrics {} is neither a port (9400, 127.0.0.1:9400, [::1]:9400) nor the path of a socket", address.text);
    return std::nullopt;
  }
  if (address.is_loopback() || may_be_any) return address;
  why = fmt::format("--metrics {}: other machines could read what programs do here; name a loopback address, or say --metrics-for-others as well",
                    address.text);
  return std::nullopt;
}

proto::FileDescriptor listen_at(const MetricsAddress& address, std::string& why) {
  return address.path.empty() ? listen_at_port(address, why) : listen_at_path(address, why);
}

}  // namespace mpsshim::broker::control
