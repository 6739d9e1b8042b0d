// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/hostile/programs/attacks.hpp"

namespace mpsshim::test {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kManyDescriptors = 250;  // the kernel takes 253 in one message

proto::MessageHeader header_of(std::uint32_t type) {
  proto::MessageHeader header;
  header.type = static_cast<proto::MessageType>(type);
  return header;
}

std::vector<std::byte> message(std::uint32_t type, std::size_t size) {
  std::vector<std::byte> bytes(size);
  const proto::MessageHeader header = header_of(type);
  std::memcpy(bytes.data(), &header, std::min(size, sizeof header));
  return bytes;
}

// A raw sendmsg: proto::Socket sends no more descriptors than the protocol has.
bool send_with_descriptors(const proto::Socket& socket, std::span<const std::byte> bytes, const std::vector<int>& fds) {
  const std::size_t count = fds.size();
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * count));
  msghdr out{};
  out.msg_iov = &part;
  out.msg_iovlen = 1;
  out.msg_control = control.data();
  out.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&out);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
  std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(int) * count);
  return sendmsg(socket.fd(), &out, MSG_NOSIGNAL) >= 0;
}

// Sockets whose last close waits for a peer that never reads: connections of TCP with bytes under way. The peers' ends stay open with this object.
class LingeringSockets {
 public:
  LingeringSockets() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int small = 4096;
    setsockopt(listener_.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const bool listens = bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 && listen(listener_.get(), 1000) == 0 &&
                         getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0;
    if (!listens) throw Failure("there is no loopback");
    address_ = address;
  }
  [[nodiscard]] proto::FileDescriptor make() {
    proto::FileDescriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int small = 4096;
    setsockopt(made.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_) != 0) throw Failure("no connection");
    peers_.emplace_back(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::array<char, 4096> bytes{};
    while (send(made.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    const struct linger long_time { 1, 600 };
    if (setsockopt(made.get(), SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time) != 0) throw Failure("no SO_LINGER");
    return made;
  }

 private:
  proto::FileDescriptor listener_;
  sockaddr_in address_{};
  std::vector<proto::FileDescriptor> peers_;
};

// A socket with another one's message in it, which has a lingering one.
proto::FileDescriptor nested(LingeringSockets& sockets) {
  const std::array<proto::Socket, 2> pair = proto::Socket::pair();
  const proto::FileDescriptor inner = sockets.make();
  const std::byte byte{};
  if (!send_with_descriptors(pair[0], {&byte, 1}, {inner.get()})) throw Failure("a socket cannot be put into another");
  return proto::FileDescriptor(fcntl(pair[1].fd(), F_DUPFD_CLOEXEC, 0));
}

bool hangs_up(const proto::Socket& socket) {
  const auto end = Clock::now() + std::chrono::milliseconds(kAnswerLimitMs);
  while (Clock::now() < end) {
    if (socket.peer_has_hung_up()) return true;
    usleep(500);
  }
  return false;
}

}  // namespace

// Requests of each kind as fast as the socket takes them, no answer read: the broker closes the connection, and another is made.
std::string flood(Hostile& hostile, int duration_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned sent = 0, connections = 0;
  while (Clock::now() < end) {
    RawSession session;
    ++connections;
    session.connection.socket.set_blocking(false);
    for (;;) {
      proto::SegmentCreate segment;
      segment.purpose = proto::SegmentPurpose::staging;
      segment.size_bytes = 4096;
      proto::ImageOpen image;
      image.size_bytes = 100;
      proto::LeaseAdd lease;
      lease.size_bytes = 1;
      proto::SocketStatus status = proto::SocketStatus::failed;
      switch (hostile.random() % 4) {
        case 0: status = proto::send_message(session.connection.socket, segment); break;
        case 1: status = proto::send_message(session.connection.socket, image); break;
        case 2: status = proto::send_message(session.connection.socket, lease); break;
        default: status = proto::send_message(session.connection.socket, proto::Attach{});
      }
      if (status == proto::SocketStatus::ok) ++sent;
      if (status == proto::SocketStatus::would_block) usleep(100);
      if (status == proto::SocketStatus::closed || status == proto::SocketStatus::failed || Clock::now() > end) break;
    }
  }
  return "ok " + std::to_string(connections) + " " + std::to_string(sent);
}

// Each type of message in each length but its own, before and behind Hello; then what is no message at all. Each ends that connection.
std::string halves(Hostile&) {
  int refused = 0;
  for (const bool greeted : {false, true}) {
    for (std::uint32_t type = 0; type < 20; ++type) {
      for (const std::size_t size : {1, 4, 15, 16, 17, 23, 31, 33, 39, 41, 63, 71, 73, 200, 4096}) {
        RawConnection connection;
        if (greeted && connection.hello().header.status != 0) throw Failure("Hello is refused");
        if (connection.socket.send(message(type, size)) != proto::SocketStatus::ok) throw Failure("a message is not taken");
        // Attach has no content beyond its header that could be wrong but its size; these sizes are nobody's.
        const bool is_whole = greeted && type == static_cast<std::uint32_t>(proto::MessageType::attach) && size == sizeof(proto::Attach);
        if (!is_whole && !hangs_up(connection.socket))
          throw Failure("type " + std::to_string(type) + " of " + std::to_string(size) + " bytes is not refused");
        ++refused;
      }
    }
  }
  for (const std::size_t size : {4097, 60'000}) {
    RawConnection connection;
    std::vector<std::byte> bytes(size, std::byte{0x77});
    if (connection.socket.send(bytes) == proto::SocketStatus::ok && !hangs_up(connection.socket)) throw Failure("a long message is not refused");
    ++refused;
  }
  return "ok " + std::to_string(refused);
}

// A Hello with so many descriptors, on a connection of its own. A process may have sixteen, and the last ones may not be closed yet.
void greet_with_descriptors(int count) {
  constexpr int kAttempts = 1000;
  const auto hello = message(static_cast<std::uint32_t>(proto::MessageType::hello), sizeof(proto::Hello));
  const proto::FileDescriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    RawConnection connection;
    if (send_with_descriptors(connection.socket, hello, std::vector<int>(static_cast<std::size_t>(count), null.get()))) {
      if (!hangs_up(connection.socket)) throw Failure(std::to_string(count) + " descriptors are not refused");
      return;
    }
    if (errno != EPIPE && errno != ECONNRESET) break;
    usleep(10'000);
  }
  throw Failure("a message with " + std::to_string(count) + " descriptors cannot be sent (errno " + std::to_string(errno) + ")");
}

std::string descriptors(Hostile&) {
  for (const int count : {2, 8, 9, kManyDescriptors}) {
    for (int turn = 0; turn < 20; ++turn) greet_with_descriptors(count);
  }
  // One descriptor, but no pidfd of this process.
  RawConnection connection;
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const auto welcome = connection.ask<proto::Welcome>(proto::Hello{}, {&null, 1});
  close(null);
  if (welcome.header.status == 0) throw Failure("a descriptor that is no pidfd is taken for one");
  return "ok";
}

std::string linger(Hostile& hostile, const std::string& way) {
  static LingeringSockets sockets;  // the peers live as long as this process
  const auto hello = message(static_cast<std::uint32_t>(proto::MessageType::hello), sizeof(proto::Hello));
  const auto garbage = message(0, 7);
  const auto send = [&](const proto::Socket& socket, std::span<const std::byte> bytes, int count) {
    std::vector<proto::FileDescriptor> own;
    std::vector<int> fds;
    for (int i = 0; i < count; ++i) fds.push_back(own.emplace_back(i == 0 && count > 1 ? nested(sockets) : sockets.make()).get());
    // The broker is to be the last to close them, as it is now and then without this.
    const pid_t broker = socket.peer().pid;
    kill(broker, SIGSTOP);
    const bool sent = send_with_descriptors(socket, bytes, fds);
    for (proto::FileDescriptor& kept : own) {
      if (!sent) (void)kept.release();  // the broker has hung up already: closing it is left to this process's end
    }
    own.clear();
    kill(broker, SIGCONT);
  };
  const auto command_socket = [] {
    return proto::Socket::connect_to(std::string(std::getenv("CUDA_MPS_PIPE_DIRECTORY")) + "/" + proto::kControlSocketName);
  };
  if (way == "refused") {
    for (int i = 0; i < 20; ++i) hostile.connections.push_back(std::make_unique<RawConnection>());  // more than one process gets
  }
  for (const int count : {1, 2, 20}) {
    if (way == "commands") {
      const proto::Socket socket = command_socket();
      send(socket, garbage, count);
    } else {
      RawConnection connection;
      if (way == "hello") send(connection.socket, hello, count);
      if (way == "garbage") send(connection.socket, garbage, count);
      if (way == "refused") send(connection.socket, hello, count);
      if (way == "unread") {
        (void)connection.hello();
        (void)connection.socket.send(std::span<const std::byte>());  // is taken for the end, and is none
        for (int i = 0; i < 3; ++i) send(connection.socket, i == 1 ? std::span<const std::byte>() : hello, count);
      }
    }
  }
  return "ok";
}

std::string stuck_image(Hostile& hostile) {
  RawSession& session = hostile.own();
  constexpr std::size_t kBytes = 4096;
  const auto faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  uffdio_api api{};
  api.api = UFFD_API;
  if (faults < 0 || ioctl(faults, UFFDIO_API, &api) != 0) return "ok 0";
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uffdio_register missing{};
  missing.range = {reinterpret_cast<std::uint64_t>(memory), kBytes};
  missing.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (ioctl(faults, UFFDIO_REGISTER, &missing) != 0) return "ok 0";
  proto::ImageOpen open;
  open.size_bytes = kBytes;
  const auto opened = session.connection.ask<proto::ImageOpened>(open);
  if (session.connection.fds.count != 1) throw Failure("no image");
  const int file = proto::take_fds<proto::ImageOpened>(session.connection.fds).file.release();
  std::thread([file, memory] { (void)!pwrite(file, memory, kBytes, 0); }).detach();
  usleep(100'000);
  proto::ImageSeal seal;
  seal.image = opened.image;
  if (proto::send_message(session.connection.socket, seal) != proto::SocketStatus::ok) throw Failure("the broker takes no request");
  usleep(100'000);
  return "ok 1";
}

std::string heir(Hostile& hostile) {
  (void)work(hostile);
  RawSession& session = *hostile.session;
  const pid_t child = fork();
  if (child != 0) return "ok " + std::to_string(child);
  close(STDIN_FILENO);
  // It goes on as if it were its parent, which it may until that one has died.
  while (!session.connection.socket.peer_has_hung_up()) {
    session.ring_doorbells();
    (void)proto::send_message(session.connection.socket, proto::LeaseAdd{});
    usleep(20'000);
  }
  for (;;) {
    session.ring_doorbells();
    usleep(20'000);
  }
}

}  // namespace mpsshim::test
