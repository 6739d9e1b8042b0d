// SPDX-License-Identifier: Apache-2.0
// What one command in the ring looks like: a header, the plain structure its id names (generated from proto/spec), trailing bytes.
// Everything in it comes from the client and is checked by the executor after it was copied to private memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "proto/ids.hpp"

namespace mpsshim::proto {

inline constexpr std::uint32_t kRecordAlignment = 8;
inline constexpr std::uint32_t kMaxRecordBytes = 64 * 1024;
inline constexpr std::uint16_t kNoReplySlot = 0xffff;

struct RecordHeader {
  std::uint32_t size_bytes;   // of the whole record, header and padding included; a multiple of kRecordAlignment
  std::uint16_t id;           // RecordId
  std::uint16_t reply_slot;   // kNoReplySlot for a post
  std::uint32_t sequence;     // counts the channel's records from 1; a gap ends the session
  std::uint32_t trailing_bytes;  // valid bytes behind the structure, without padding
  StreamId stream;            // the stream whose order it keeps; {0} where it has none
};
static_assert(sizeof(RecordHeader) == 24 && alignof(RecordHeader) == 8 && std::is_trivially_copyable_v<RecordHeader>);

constexpr std::uint32_t record_size(std::size_t body_bytes, std::size_t trailing_bytes) {
  const std::size_t size = sizeof(RecordHeader) + body_bytes + trailing_bytes;
  return static_cast<std::uint32_t>((size + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment);
}

}  // namespace mpsshim::proto
