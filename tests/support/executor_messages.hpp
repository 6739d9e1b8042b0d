// SPDX-License-Identifier: Apache-2.0
// The other end of a link between control process and executor, played by a test.
#pragma once

#include <array>
#include <optional>

#include "broker/executor_message.hpp"

namespace mpsshim::test {

inline bool send_message(const proto::Socket& socket, const broker::OutgoingMessage& message) {
  return socket.send(message.bytes(), message.fds()) == proto::SocketStatus::ok;
}

// The next one. Nothing where none is there, or the link is closed, or it does not fit its row.
inline std::optional<broker::ReceivedMessage> receive_message(const proto::Socket& socket, proto::MessageDirection direction) {
  std::array<std::byte, broker::kMaxExecutorPacketBytes> packet;
  std::size_t bytes = 0;
  proto::ReceivedFds fds;
  broker::ReceivedMessage received;
  if (socket.receive(packet, bytes, fds) != proto::SocketStatus::ok) return std::nullopt;
  if (received.assign(std::span(packet).first(bytes), fds, direction) != proto::Misfit::fits) return std::nullopt;
  return received;
}

}  // namespace mpsshim::test
