// SPDX-License-Identifier: Apache-2.0
// A message of the link between control process and executor, as one packet: an ExecutorHeader, a structure of gen/executor_messages.hpp, and
// descriptors by their names. Whatever arrives is held against its row here, and nowhere else; what does not fit is in nobody's hands.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "gen/executor_messages.hpp"
#include "proto/message_fds.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker {

struct ExecutorHeader {
  ExecutorMessage type{};
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ExecutorHeader) == 8);

inline constexpr std::size_t kMaxExecutorPacketBytes =
    sizeof(ExecutorHeader) + std::ranges::max(kExecutorMessages, {}, &proto::MessageRow::size_bytes).size_bytes;
static_assert(kMaxExecutorPacketBytes <= proto::kMaxMessageBytes);

using proto::LentFds;
using proto::Received;

// Of a message that is sent. Its descriptors are lent: they stay open until it is.
class OutgoingMessage {
 public:
  template <typename Message>
  OutgoingMessage(const Message& message, LentFds<Message> fds = {}) {  // NOLINT(google-explicit-constructor): it is that message
    static constexpr const proto::MessageRow& kRow = *proto::find_row(kExecutorMessages, static_cast<std::uint32_t>(Message::kId));
    const ExecutorHeader header{Message::kId};
    std::memcpy(packet_.data(), &header, sizeof header);
    if constexpr (Message::kBytes != 0) std::memcpy(packet_.data() + sizeof header, &message, Message::kBytes);
    size_bytes_ = sizeof header + Message::kBytes;
    fds_ = proto::LentList(kRow, fds.list());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(packet_).first(size_bytes_); }
  [[nodiscard]] std::span<const int> fds() const { return fds_.in_order(); }

 private:
  std::array<std::byte, kMaxExecutorPacketBytes> packet_;
  std::size_t size_bytes_ = 0;
  proto::LentList fds_;
};

// One that fits its row. Taken apart once, by whoever it is for.
class ReceivedMessage {
 public:
  ReceivedMessage() = default;
  // `fits`: this one has the packet and its descriptors now. Else it is as it was; the packet's descriptors are closed by whoever has `fds`.
  [[nodiscard]] proto::Misfit assign(std::span<const std::byte> packet, proto::ReceivedFds& fds, proto::MessageDirection direction) {
    ExecutorHeader header;
    if (packet.size() < sizeof header) return proto::Misfit::size;
    std::memcpy(&header, packet.data(), sizeof header);
    const proto::MessageRow* const row = proto::find_row(kExecutorMessages, static_cast<std::uint32_t>(header.type));
    const auto body = packet.subspan(sizeof header);
    if (const proto::Misfit misfit = proto::misfit(row, direction, body, fds.count); misfit != proto::Misfit::fits) return misfit;
    row_ = row;
    std::ranges::copy(body, body_.begin());
    fds_ = std::move(fds);
    fds.count = 0;
    return proto::Misfit::fits;
  }

  [[nodiscard]] ExecutorMessage id() const { return static_cast<ExecutorMessage>(row_->id); }
  [[nodiscard]] const char* name() const { return row_->name; }
  template <typename Message>
  [[nodiscard]] bool is() const {
    return id() == Message::kId;
  }
  // Only where is<Message>(). Texts end with 0.
  template <typename Message>
  [[nodiscard]] Message read() const {
    Message message;
    if constexpr (Message::kBytes != 0) std::memcpy(&message, body_.data(), Message::kBytes);
    if constexpr (requires { message.end_texts(); }) message.end_texts();
    return message;
  }
  template <typename Message>
  [[nodiscard]] Received<Message> take() {
    return {read<Message>(), proto::take_fds<Message>(fds_)};
  }
  // Of the session that it names; 0: of none.
  [[nodiscard]] std::uint64_t session() const {
    switch (id()) {
#define MPSSHIM_TO_EXECUTOR(enumerator, Structure) \
  case ExecutorMessage::enumerator: return session_in(read<message::Structure>());
#define MPSSHIM_FROM_EXECUTOR(enumerator, Structure) \
  case ExecutorMessage::enumerator: return session_in(read<message::Structure>());
#include "gen/message_names.inc"
    }
    return 0;
  }

 private:
  template <typename Message>
  static std::uint64_t session_in(const Message& message) {
    if constexpr (requires { message.session; }) return message.session;
    return 0;
  }

  const proto::MessageRow* row_ = nullptr;
  std::array<std::byte, kMaxExecutorPacketBytes> body_;
  proto::ReceivedFds fds_;
};

// For a log line about a packet that does not fit.
[[nodiscard]] inline const char* name_in(std::span<const std::byte> packet) {
  ExecutorHeader header;
  if (packet.size() < sizeof header) return "a packet";
  std::memcpy(&header, packet.data(), sizeof header);
  const proto::MessageRow* const row = proto::find_row(kExecutorMessages, static_cast<std::uint32_t>(header.type));
  return row != nullptr ? row->name : "a message";
}

// Cut where it is too long.
template <std::size_t size>
void set_text(char (&text)[size], std::string_view words) {
  const std::size_t length = std::min(words.size(), size - 1);
  std::memcpy(text, words.data(), length);
  text[length] = '\0';
}

}  // namespace mpsshim::broker
