// SPDX-License-Identifier: Apache-2.0
// Messages between a client and the control process, over the socket `mpsshim.sock` in the pipe directory. One request, one answer; a client
// process uses one connection under a lock. Each message is one packet: a MessageHeader, a plain structure, file descriptors where its row has
// them. What each says stands in proto/spec/messages.toml (docs/messages.md); how they follow each other in docs/protocol.md.
// A hang-up or the pidfd of Hello, once it is readable, ends the session.
// Semantics of limits and refusals follow NVIDIA's MPS manual, "Client-Server Connection".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gen/client_messages.hpp"
#include "proto/channel.hpp"
#include "proto/message_fds.hpp"

namespace mpsshim::proto {

inline constexpr char kClientSocketName[] = "mpsshim.sock";
inline constexpr char kControlSocketName[] = "control.sock";  // mpsctl: a line of text in, text out

// For good (messages.toml).
static_assert(sizeof(Hello) == 32 && sizeof(Welcome) == 24 && sizeof(Attached) == 72);

template <typename Message>
inline constexpr const MessageRow& kRowOf = *find_row(kClientMessages, static_cast<std::uint32_t>(Message::kId));

// One packet, with what is lent of its descriptors.
template <typename Message>
[[nodiscard]] SocketStatus send_message(const Socket& socket, const Message& message, LentFds<Message> fds) {
  return socket.send(std::as_bytes(std::span(&message, 1)), LentList(kRowOf<Message>, fds.list()).in_order());
}

}  // namespace mpsshim::proto
