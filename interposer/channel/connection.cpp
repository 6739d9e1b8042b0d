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

namespace {

proto::MessageHeader header_of(std::span<const std::byte> packet) {
  proto::MessageHeader header;
  std::memcpy(&header, packet.data(), sizeof header);
  return header;
}

// nullptr: it is an answer of that row. A refusal is as long, since a Welcome that is one has a version; it has no descriptors.
const char* fault_of(std::span<const std::byte> packet, std::size_t descriptors, const proto::MessageRow& expected) {
  if (packet.size() < sizeof(proto::MessageHeader)) return "the broker's answer is too short";
  const proto::MessageHeader header = header_of(packet);
  if (header.magic != proto::kMessageMagic) return "the broker's answer is not of this protocol";
  if (static_cast<std::uint32_t>(header.type) != expected.id) return "the broker has answered another question";
  proto::MessageRow row = expected;
  if (header.status != 0) row.least_descriptors = row.most_descriptors = 0;
  switch (proto::misfit(&row, proto::MessageDirection::to_client, packet, descriptors)) {
    case proto::Misfit::fits: return nullptr;
    case proto::Misfit::size: return "the broker's answer has another size than its type";
    case proto::Misfit::descriptors: return "the broker's answer has other descriptors than its type";
    case proto::Misfit::unknown:
    case proto::Misfit::direction:
    case proto::Misfit::range: break;
  }
  return "the broker's answer is none that a broker sends";
}

}  // namespace

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

CUresult Connection::exchange(std::span<const std::byte> request, const proto::LentList& fds, const proto::MessageRow& expected,
                              std::span<std::byte> answer, proto::ReceivedFds& received, int timeout_ms) {
  const NoCancellation hold;
  const std::lock_guard lock(mutex_);
  if (lost_ != nullptr) return CUDA_ERROR_MPS_CONNECTION_FAILED;
  if (!still_ours()) return lose("the program has closed the descriptor of its socket");
  SocketStatus sent = socket_.send(request, fds.in_order());
  // Others of this user may have too many descriptors in sockets. Hello does without its own; of another question nothing has been sent.
  if (sent == SocketStatus::failed && !fds.in_order().empty() && proto::is_shortage(errno)) {
    if (!fds.is_optional()) return CUDA_ERROR_OUT_OF_MEMORY;
    sent = socket_.send(request);
  }
  if (sent != SocketStatus::ok) return lose("sending failed");
  if (!socket_.wait_readable(timeout_ms)) return lose("no answer within the time limit");

  std::array<std::byte, proto::kMaxMessageBytes> buffer;
  std::size_t packet_bytes = 0;
  proto::ReceivedFds fds_of_packet;  // closed here unless the packet is the answer
  switch (socket_.receive(buffer, packet_bytes, fds_of_packet)) {
    case SocketStatus::ok: break;
    case SocketStatus::closed: return lose("the broker has hung up");
    case SocketStatus::truncated: return lose("the broker's answer is longer, or has more descriptors, than any message of the protocol");
    case SocketStatus::would_block:
    case SocketStatus::failed: return lose("receiving failed");
  }
  const std::span packet = std::span<const std::byte>(buffer).first(packet_bytes);
  if (const char* const fault = fault_of(packet, fds_of_packet.count, expected); fault != nullptr) return lose(fault);
  std::memcpy(answer.data(), packet.data(), answer.size());
  received = std::move(fds_of_packet);
  return static_cast<CUresult>(header_of(packet).status);
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
