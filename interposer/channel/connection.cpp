// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/connection.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "interposer/cancellation.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer {

using proto::SocketStatus;

bool Connection::open(const std::string& path) {
  socket_ = proto::Socket::connect_to(path);
  if (!socket_.valid()) return false;
  struct stat status {};
  if (fstat(socket_.fd(), &status) != 0) return false;
  socket_device_ = status.st_dev;
  socket_inode_ = status.st_ino;
  return true;
}

bool Connection::still_ours() const {
  struct stat status {};
  return fstat(socket_.fd(), &status) == 0 && S_ISSOCK(status.st_mode) && status.st_dev == socket_device_ && status.st_ino == socket_inode_;
}

CUresult Connection::lose(const char* why) {
  if (lost_ == nullptr && greeted_) {
    log_line("The connection to the broker is lost (%s): CUDA calls of this process fail from now on; start the program again.", why);
  }
  lost_ = why;
  return CUDA_ERROR_MPS_CONNECTION_FAILED;
}

CUresult Connection::exchange(std::span<const std::byte> request, std::span<const int> fds, std::span<std::byte> answer, proto::MessageType expected,
                              proto::ReceivedFds& received, int timeout_ms) {
  const NoCancellation hold;
  const std::lock_guard lock(mutex_);
  if (lost_ != nullptr) return CUDA_ERROR_MPS_CONNECTION_FAILED;
  if (!still_ours()) return lose("the program has closed the descriptor of its socket");
  SocketStatus sent = socket_.send(request, fds);
  // Others of this user may have too many descriptors in sockets. Only Hello has one, and does without.
  if (sent == SocketStatus::failed && !fds.empty() && proto::is_shortage(errno)) sent = socket_.send(request);
  if (sent != SocketStatus::ok) return lose("sending failed");
  if (!socket_.wait_readable(timeout_ms)) return lose("no answer within the time limit");

  std::array<std::byte, proto::kMaxMessageBytes> packet;
  std::size_t packet_bytes = 0;
  switch (socket_.receive(packet, packet_bytes, received)) {
    case SocketStatus::ok: break;
    case SocketStatus::closed: return lose("the broker has hung up");
    case SocketStatus::truncated: return lose("the broker's answer is longer than any message of the protocol");
    case SocketStatus::would_block:
    case SocketStatus::failed: return lose("receiving failed");
  }
  proto::MessageHeader header;
  if (packet_bytes < sizeof header) return lose("the broker's answer is too short");
  std::memcpy(&header, packet.data(), sizeof header);
  if (header.magic != proto::kMessageMagic) return lose("the broker's answer is not of this protocol");
  if (header.status != 0) {
    received = proto::ReceivedFds{};
    // Of a refusal nothing else counts, but that a Welcome has the version of a broker that does not serve ours.
    if (header.type == expected) std::memcpy(answer.data(), packet.data(), packet_bytes < answer.size() ? packet_bytes : answer.size());
    return static_cast<CUresult>(header.status);
  }
  // A broker of a newer release may append fields; one of an older release may lack some, which keep the defaults of the message.
  if (header.type != expected) return lose("the broker has answered another question");
  std::memcpy(answer.data(), packet.data(), packet_bytes < answer.size() ? packet_bytes : answer.size());
  return CUDA_SUCCESS;
}

bool Connection::is_lost() {
  const std::lock_guard lock(mutex_);
  if (lost_ == nullptr && (!still_ours() || socket_.peer_has_hung_up())) (void)lose("the broker has hung up");
  return lost_ != nullptr;
}

const char* Connection::why_lost() {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void Connection::greeted() {
  const std::lock_guard lock(mutex_);
  greeted_ = true;
}

void Connection::abandon_after_fork() {
  if (socket_.valid() && still_ours()) {
    socket_.reset();
  } else {
    [[maybe_unused]] proto::Socket* leaked = new proto::Socket(std::move(socket_));  // the number is somebody else's now: never close it
  }
}

}  // namespace mpsshim::interposer
