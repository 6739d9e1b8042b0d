// SPDX-License-Identifier: Apache-2.0
// Unix sockets of type SOCK_SEQPACKET: one message a packet, with file descriptors attached. Used between client and control process and
// between control process and executor. Paths of any length work (a long directory is entered through /proc/self/fd).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <sys/types.h>

#include "proto/segment.hpp"

namespace mpsshim::proto {

inline constexpr std::size_t kMaxMessageBytes = 4096;
inline constexpr std::size_t kMaxMessageFds = 8;

struct PeerCredentials {
  pid_t pid = -1;
  uid_t uid = static_cast<uid_t>(-1);
  gid_t gid = static_cast<gid_t>(-1);
};

struct ReceivedFds {
  std::array<FileDescriptor, kMaxMessageFds> fds;
  std::size_t count = 0;
};

enum class SocketStatus : std::uint8_t { ok, would_block, closed, truncated, failed };

class Socket {
 public:
  Socket() = default;
  explicit Socket(FileDescriptor fd) : fd_(std::move(fd)) {}

  [[nodiscard]] static Socket listen_at(const std::string& path, int backlog);  // invalid on failure (errno); replaces a stale socket file
  [[nodiscard]] static Socket connect_to(const std::string& path);              // invalid on failure (errno); close-on-exec, blocking
  [[nodiscard]] static std::array<Socket, 2> pair();

  [[nodiscard]] Socket accept() const;  // non-blocking socket, invalid if none waits
  [[nodiscard]] PeerCredentials peer() const;

  // One packet. `send` blocks unless the socket is non-blocking (then would_block).
  [[nodiscard]] SocketStatus send(std::span<const std::byte> message, std::span<const int> fds = {}) const;
  // `received_bytes` is the packet's length. A packet longer than `buffer`, or with more fds than kMaxMessageFds, is `truncated`; its fds are closed.
  [[nodiscard]] SocketStatus receive(std::span<std::byte> buffer, std::size_t& received_bytes, ReceivedFds& fds) const;
  // Waits until a packet or hang-up is there; false after `timeout_ms`.
  [[nodiscard]] bool wait_readable(int timeout_ms) const;
  [[nodiscard]] bool peer_has_hung_up() const;
  void set_blocking(bool blocking) const;

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool valid() const { return fd_.valid(); }
  void reset() { fd_.reset(); }

 private:
  FileDescriptor fd_;
};

template <typename Message>
[[nodiscard]] SocketStatus send_message(const Socket& socket, const Message& message, std::span<const int> fds = {}) {
  return socket.send(std::as_bytes(std::span(&message, 1)), fds);
}

}  // namespace mpsshim::proto
