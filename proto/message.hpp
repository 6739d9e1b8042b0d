// SPDX-License-Identifier: Apache-2.0
// What every message of a socket has, whichever link it is of: its row, which the generator makes from proto/spec/messages.toml, and the one
// place where what has arrived is held against it. What is no row's, has another direction, size or other descriptors is nobody's message.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace mpsshim::proto {

inline constexpr std::uint32_t kMessageMagic = 0x6d50'5368;

enum class MessageType : std::uint32_t;  // gen/client_messages.hpp

// Of a client's messages and their answers. `status` is a CUresult (0 in requests). An answer with another status has no file descriptors and
// only a header that counts.
struct MessageHeader {
  std::uint32_t magic = kMessageMagic;
  MessageType type{};
  std::uint32_t status = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(MessageHeader) == 16);

// Descriptors of a message that has none. `File` is int where they are lent, FileDescriptor where they are taken.
template <typename File>
struct NoDescriptors {
  static constexpr std::array<File*, 0> list() { return {}; }
};

template <typename Message, typename File>
using DescriptorsOf = typename Message::template Descriptors<File>;
template <typename Message>
inline constexpr std::size_t kDescriptors = DescriptorsOf<Message, int>{}.list().size();  // at most

enum class MessageDirection : std::uint8_t { from_client, to_client, to_executor, from_executor };

struct MessageRow {
  std::uint32_t id;
  const char* name;
  MessageDirection direction;
  std::size_t size_bytes;
  std::size_t least_descriptors;
  std::size_t most_descriptors;
  const char* (*out_of_range)(std::span<const std::byte>);  // the first field that is nothing it can be; nullptr: any number is
};

template <typename Message>
const char* out_of_range_in(std::span<const std::byte> bytes) {
  Message message;
  std::memcpy(&message, bytes.data(), sizeof message);
  return message.out_of_range();
}

// nullptr: there is none.
[[nodiscard]] constexpr const MessageRow* find_row(std::span<const MessageRow> rows, std::uint32_t id) {
  for (const MessageRow& row : rows) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

// What is wrong with what has arrived; `fits`: nothing. In the order in which it is looked for.
enum class Misfit : std::uint8_t { fits, unknown, direction, size, descriptors, range };

[[nodiscard]] inline Misfit misfit(const MessageRow* row, MessageDirection direction, std::span<const std::byte> bytes, std::size_t descriptors) {
  if (row == nullptr) return Misfit::unknown;
  if (row->direction != direction) return Misfit::direction;
  if (row->size_bytes != bytes.size()) return Misfit::size;
  if (descriptors < row->least_descriptors || descriptors > row->most_descriptors) return Misfit::descriptors;
  return row->out_of_range != nullptr && row->out_of_range(bytes) != nullptr ? Misfit::range : Misfit::fits;
}

// For a sentence about it: "it ...".
[[nodiscard]] constexpr const char* words_for(Misfit misfit) {
  switch (misfit) {
    case Misfit::fits: return "is as it should be";
    case Misfit::unknown: return "is of no known type";
    case Misfit::direction: return "is not one that this side sends";
    case Misfit::size: return "has another size than its type";
    case Misfit::descriptors: return "has other descriptors than its type";
    case Misfit::range: return "has a field that is nothing it can be";
  }
  return "?";
}

}  // namespace mpsshim::proto
