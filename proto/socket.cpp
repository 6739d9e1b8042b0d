// SPDX-License-Identifier: Apache-2.0
#include "proto/socket.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace mpsshim::proto {

static_assert(EAGAIN == EWOULDBLOCK);

namespace {

// sockaddr_un holds 107 characters. A longer path is reached through its directory: /proc/self/fd/N/name.
class SocketAddress {
 public:
  explicit SocketAddress(const std::string& path) {
    address_.sun_family = AF_UNIX;
    if (path.size() < sizeof address_.sun_path) {
      std::memcpy(address_.sun_path, path.c_str(), path.size() + 1);
      valid_ = true;
      return;
    }
    const std::size_t slash = path.rfind('/');
    directory_ = FileDescriptor(open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory_.valid()) return;
    const int length = std::snprintf(address_.sun_path, sizeof address_.sun_path, "/proc/self/fd/%d/%s", directory_.get(), path.c_str() + slash + 1);
    valid_ = length > 0 && static_cast<std::size_t>(length) < sizeof address_.sun_path;
    if (!valid_) errno = ENAMETOOLONG;
  }
  [[nodiscard]] bool valid() const { return valid_; }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  static constexpr socklen_t kLength = sizeof(sockaddr_un);

 private:
  sockaddr_un address_{};
  FileDescriptor directory_;
  bool valid_ = false;
};

FileDescriptor new_socket(int flags) { return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0)); }

// True if somebody listens there.
bool is_alive(const SocketAddress& address) {
  const FileDescriptor probe = new_socket(SOCK_NONBLOCK);
  return probe.valid() && (connect(probe.get(), address.get(), SocketAddress::kLength) == 0 || errno == EAGAIN);
}

}  // namespace

Socket Socket::listen_at(const std::string& path, int backlog) {
  const SocketAddress address(path);
  FileDescriptor fd = new_socket(SOCK_NONBLOCK);
  if (!address.valid() || !fd.valid()) return {};
  if (bind(fd.get(), address.get(), SocketAddress::kLength) != 0) {
    if (errno != EADDRINUSE || is_alive(address)) {
      errno = EADDRINUSE;
      return {};
    }
    unlink(path.c_str());
    if (bind(fd.get(), address.get(), SocketAddress::kLength) != 0) return {};
  }
  if (listen(fd.get(), backlog) != 0) return {};
  return Socket(std::move(fd));
}

Socket Socket::connect_to(const std::string& path) {
  const SocketAddress address(path);
  FileDescriptor fd = new_socket(0);
  if (!address.valid() || !fd.valid()) return {};
  int result = 0;
  do {
    result = connect(fd.get(), address.get(), SocketAddress::kLength);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return {};
  return Socket(std::move(fd));
}

std::array<Socket, 2> Socket::pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return {};
  return {Socket(FileDescriptor(fds[0])), Socket(FileDescriptor(fds[1]))};
}

Socket Socket::accept() const { return Socket(FileDescriptor(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK))); }

PeerCredentials Socket::peer() const {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return {};
  return {credentials.pid, credentials.uid, credentials.gid};
}

SocketStatus Socket::send(std::span<const std::byte> message, std::span<const int> fds) const {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxMessageFds)> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fds.size() > kMaxMessageFds) return SocketStatus::failed;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* cmsg = CMSG_FIRSTHDR(&header);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(cmsg), fds.data(), sizeof(int) * fds.size());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(fd_.get(), &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return SocketStatus::ok;
  if (errno == EAGAIN) return SocketStatus::would_block;
  return errno == EPIPE || errno == ECONNRESET ? SocketStatus::closed : SocketStatus::failed;
}

SocketStatus Socket::receive(std::span<std::byte> buffer, std::size_t& received_bytes, ReceivedFds& fds) const {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxMessageFds)> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t received = 0;
  do {
    // ECONNRESET is told once, before packets that are still queued: the peer closed without having read all of ours. Those packets count
    // (a dying executor's last words); after them the result is 0.
    received = recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC);
  } while (received < 0 && (errno == EINTR || errno == ECONNRESET));
  if (received < 0) {
    if (errno == EAGAIN) return SocketStatus::would_block;
    return SocketStatus::failed;
  }
  fds = ReceivedFds{};
  for (cmsghdr* cmsg = CMSG_FIRSTHDR(&header); cmsg != nullptr; cmsg = CMSG_NXTHDR(&header, cmsg)) {
    if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof fd);
      FileDescriptor owned(fd);
      if (fds.count < kMaxMessageFds) fds.fds[fds.count++] = std::move(owned);
    }
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    fds = ReceivedFds{};
    return SocketStatus::truncated;
  }
  if (received == 0) return SocketStatus::closed;
  received_bytes = static_cast<std::size_t>(received);
  return SocketStatus::ok;
}

SocketStatus Socket::peek(std::span<std::byte> buffer, std::size_t& received_bytes, bool& carries_fds) const {
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  ssize_t received = 0;
  do {
    received = recvmsg(fd_.get(), &header, MSG_PEEK);
  } while (received < 0 && (errno == EINTR || errno == ECONNRESET));
  if (received < 0) return errno == EAGAIN ? SocketStatus::would_block : SocketStatus::failed;
  carries_fds = (header.msg_flags & MSG_CTRUNC) != 0;  // no room for them was given
  if ((header.msg_flags & MSG_TRUNC) != 0) return SocketStatus::truncated;
  if (received == 0 && !carries_fds) return SocketStatus::closed;
  received_bytes = static_cast<std::size_t>(received);
  return SocketStatus::ok;
}

FileDescriptor Socket::peek_fd(ReceivedFds& strange) const {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_control = control.data();
  header.msg_controllen = CMSG_LEN(sizeof(int));  // not CMSG_SPACE, whose padding has room for a second one
  ssize_t received = 0;
  do {
    received = recvmsg(fd_.get(), &header, MSG_PEEK | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  const cmsghdr* const rights = received < 0 ? nullptr : CMSG_FIRSTHDR(&header);
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS || rights->cmsg_len != CMSG_LEN(sizeof(int)))
    return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  if ((header.msg_flags & MSG_CTRUNC) == 0) return FileDescriptor(fd);
  strange.fds[strange.count++] = FileDescriptor(fd);
  return {};
}

void Socket::drop() const {
  while (recv(fd_.get(), nullptr, 0, 0) < 0 && errno == EINTR) {
  }
}

bool Socket::hang_up() const {
  shutdown(fd_.get(), SHUT_RDWR);  // nothing comes in any more
  // A packet may be empty, as the end is; but each that is there says who has sent it.
  const int yes = 1;
  setsockopt(fd_.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
  for (;;) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> sender{};
    msghdr header{};
    header.msg_control = sender.data();
    header.msg_controllen = sender.size();
    if (recvmsg(fd_.get(), &header, MSG_PEEK | MSG_DONTWAIT) < 0) {
      if (errno == EINTR || errno == ECONNRESET) continue;
      return true;
    }
    if ((header.msg_flags & MSG_CTRUNC) != 0) return false;
    if (header.msg_controllen == 0) return true;
    drop();
  }
}

bool is_shortage(int error) { return error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM; }

bool Socket::wait_readable(int timeout_ms) const {
  pollfd poll_fd{fd_.get(), POLLIN, 0};
  int result = 0;
  do {
    result = poll(&poll_fd, 1, timeout_ms);
  } while (result < 0 && errno == EINTR);
  return result > 0;
}

bool Socket::peer_has_hung_up() const {
  pollfd poll_fd{fd_.get(), POLLRDHUP, 0};
  return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) != 0;
}

void Socket::set_blocking(bool blocking) const {
  const int flags = fcntl(fd_.get(), F_GETFL);
  if (flags >= 0) fcntl(fd_.get(), F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

}  // namespace mpsshim::proto
