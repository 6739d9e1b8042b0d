// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/support/control_peer.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include "proto/client_requests.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"

namespace mpsshim::fuzz {

using broker::ExecutorMessage;
using broker::ExecutorPacket;

ControlPeer::ControlPeer(test::WireExecutor& executor) : executor_(executor) {
  fcntl(executor.link_fd, F_SETFL, fcntl(executor.link_fd, F_GETFL) & ~O_NONBLOCK);
  filing_ = std::thread([this] { executor_.link->run([](const ExecutorPacket&, proto::ReceivedFds&) {}); });
  answering_ = std::thread([this] { answer(); });
}

ControlPeer::~ControlPeer() {
  ExecutorPacket quit;
  quit.header.type = ExecutorMessage::quit;
  (void)proto::send_message(executor_.control_end, quit);
  filing_.join();
  // What this end still has to say comes from nobody else: the thread below finds the link closed.
  shutdown(executor_.link_fd, SHUT_RDWR);
  answering_.join();
}

void ControlPeer::answer() {
  ExecutorPacket packet;
  std::size_t bytes = 0;
  for (proto::ReceivedFds fds; executor_.control_end.receive(std::as_writable_bytes(std::span(&packet, 1)), bytes, fds) == proto::SocketStatus::ok;
       fds = {}) {
    ExecutorPacket answer;
    answer.header.session = packet.header.session;
    answer.object = packet.object;
    answer.address = packet.address;
    if (packet.header.type == ExecutorMessage::settle) {
      answer.header.type = ExecutorMessage::settled;
    } else if (packet.header.type == ExecutorMessage::image_want || packet.header.type == ExecutorMessage::image_check) {
      answer.header.type = ExecutorMessage::image_give;
      answer.header.status = CUDA_ERROR_INVALID_IMAGE;
    } else if (packet.header.type == ExecutorMessage::link_want && fds.count == 1) {
      answer.header.type = ExecutorMessage::image_give;  // the executor is to see to it itself
      const int request = fds.fds[0].get();
      (void)proto::send_message(executor_.control_end, answer, {&request, 1});
      continue;
    } else {
      continue;
    }
    (void)proto::send_message(executor_.control_end, answer);
  }
}

void ControlPeer::announce_segment(std::uint64_t session, std::uint64_t segment, std::uint64_t address, std::uint64_t size_bytes) {
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::segment_add, 0, session};
  packet.object = segment;
  packet.purpose = static_cast<std::uint32_t>(proto::SegmentPurpose::pinned);
  packet.address = address;
  packet.size_bytes = size_bytes;
  const proto::FileDescriptor file = proto::create_memory_file("segment", size_bytes);
  require(proto::seal(file, proto::Seal::size), "a file cannot be sealed");
  const int fd = file.get();
  (void)proto::send_message(executor_.control_end, packet, {&fd, 1});
}

void ControlPeer::announce_external(std::uint64_t session, proto::ExternalMemoryId memory, std::uint64_t size_bytes) {
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::piece_add, 0, session};
  packet.object = memory.value;
  packet.purpose = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  packet.size_bytes = size_bytes;
  const proto::FileDescriptor file = proto::create_memory_file("external", size_bytes);
  executor_.fake.oracle.give_file(file.get(), session);
  const int fd = file.get();
  (void)proto::send_message(executor_.control_end, packet, {&fd, 1});
}

}  // namespace mpsshim::fuzz
