// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/support/control_peer.hpp"

#include <array>

#include <fcntl.h>
#include <sys/socket.h>

#include "proto/client_requests.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"

namespace mpsshim::fuzz {

namespace message = broker::message;
using broker::OutgoingMessage;
using broker::ReceivedMessage;

namespace {
void send(const proto::Socket& socket, const OutgoingMessage& message) { (void)socket.send(message.bytes(), message.fds()); }
}  // namespace

ControlPeer::ControlPeer(test::WireExecutor& executor) : executor_(executor) {
  fcntl(executor.link_fd, F_SETFL, fcntl(executor.link_fd, F_GETFL) & ~O_NONBLOCK);
  filing_ = std::thread([this] { executor_.link->run([](ReceivedMessage&) {}); });
  answering_ = std::thread([this] { answer(); });
}

ControlPeer::~ControlPeer() {
  send(executor_.control_end, message::Quit{});
  filing_.join();
  // What this end still has to say comes from nobody else: the thread below finds the link closed.
  shutdown(executor_.link_fd, SHUT_RDWR);
  answering_.join();
}

void ControlPeer::answer() {
  std::array<std::byte, broker::kMaxExecutorPacketBytes> packet;
  std::size_t bytes = 0;
  for (proto::ReceivedFds fds; executor_.control_end.receive(packet, bytes, fds) == proto::SocketStatus::ok; fds = {}) {
    ReceivedMessage received;
    const proto::Misfit misfit = received.assign(std::span(packet).first(bytes), fds, proto::MessageDirection::from_executor);
    require(misfit == proto::Misfit::fits, "the executor sends what is no message of its");
    message::ImageGive give{.session = received.session(), .status = CUDA_ERROR_INVALID_IMAGE};
    if (received.is<message::Settle>()) {
      send(executor_.control_end, message::Settled{.ticket = received.read<message::Settle>().ticket});
    } else if (received.is<message::ImageWant>()) {
      give.question = received.read<message::ImageWant>().question;
      send(executor_.control_end, give);
    } else if (received.is<message::ImageCheck>()) {
      give.question = received.read<message::ImageCheck>().question;
      send(executor_.control_end, give);
    } else if (received.is<message::LinkWant>()) {
      const auto [want, files] = received.take<message::LinkWant>();
      give.question = want.question;
      give.status = CUDA_SUCCESS;  // the executor is to see to it itself
      send(executor_.control_end, {give, {.image = files.request.get()}});
    }
  }
}

void ControlPeer::announce_segment(std::uint64_t session, std::uint64_t segment, std::uint64_t address, std::uint64_t size_bytes) {
  const proto::FileDescriptor file = proto::create_memory_file("segment", size_bytes);
  require(proto::seal(file, proto::Seal::size), "a file cannot be sealed");
  send(executor_.control_end, {message::SegmentAdd{.session = session,
                                                   .segment = segment,
                                                   .address = address,
                                                   .size_bytes = size_bytes,
                                                   .purpose = proto::SegmentPurpose::pinned},
                               {.file = file.get()}});
}

void ControlPeer::announce_external(std::uint64_t session, proto::ExternalMemoryId memory, std::uint64_t size_bytes) {
  const proto::FileDescriptor file = proto::create_memory_file("external", size_bytes);
  executor_.fake.oracle.give_file(file.get(), session);
  send(executor_.control_end, {message::PieceAdd{.session = session,
                                                 .memory = memory.value,
                                                 .size_bytes = size_bytes,
                                                 .handle_type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD},
                               {.handle = file.get()}});
}

}  // namespace mpsshim::fuzz
