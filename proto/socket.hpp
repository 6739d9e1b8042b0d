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

  // For packets of peers that are not trusted. The kernel closes with whoever takes a packet what of its descriptors is not received, and some
  // take as long to close as their maker likes; so it is looked at first.
  // As receive(), but the packet stays in the socket, its descriptors too; `carries_fds`: it has some.
  [[nodiscard]] SocketStatus peek(std::span<std::byte> buffer, std::size_t& received_bytes, bool& carries_fds) const;
  // The descriptor of a packet that has one: duplicated, and still in the socket. Invalid where there is not exactly one, or it cannot be had;
  // `strange` then has what was duplicated all the same.
  [[nodiscard]] FileDescriptor peek_fd(ReceivedFds& strange) const;
  // Takes the packet that was looked at. Its descriptors are closed where it has any.
  void drop() const;
  // Hangs up, and drops what has come. False: it has descriptors among it, and closing this socket closes them.
  [[nodiscard]] bool hang_up() const;

  // Waits until a packet or hang-up is there; false after `timeout_ms`.
  [[nodiscard]] bool wait_readable(int timeout_ms) const;
  [[nodiscard]] bool peer_has_hung_up() const;
  void set_blocking(bool blocking) const;

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] bool valid() const { return fd_.valid(); }
  void reset() { fd_.reset(); }
  [[nodiscard]] FileDescriptor release() { return std::move(fd_); }

 private:
  FileDescriptor fd_;
};

// Whether `error`, the errno of a send() that has failed, says that too much is under way for now: descriptors of this user's processes in sockets
// (ETOOMANYREFS), or memory. That is nobody's end: the same message may be sent later.
[[nodiscard]] bool is_shortage(int error);

template <typename Message>
[[nodiscard]] SocketStatus send_message(const Socket& socket, const Message& message, std::span<const int> fds = {}) {
  return socket.send(std::as_bytes(std::span(&message, 1)), fds);
}

}  // namespace mpsshim::proto
