// SPDX-License-Identifier: Apache-2.0
// Messages between a client and the control process, over the socket `mpsshim.sock` in the pipe directory. One request, one answer; a client
// process uses one connection under a lock. Each message is one packet: a MessageHeader, a plain structure, file descriptors where noted.
//
// clang-format off
//   client                             control process
//   Hello + [pidfd of itself]       →  Welcome + [driver facts, read only]     no session yet: facts only
//   Attach                          →  Attached + [channel, fences, ring doorbell, completion doorbell]
//   what it asks then: client_requests.hpp
//   (hang-up or the pidfd readable)    the session ends
// clang-format on
//
// These structures keep their sizes for good: what is added is a message of its own, which an older client does not send.
// After SessionState::moved the client sends Attach again on the same connection and gets a new channel and epoch with its memory in place.
// Semantics of limits and refusals follow NVIDIA's MPS manual, "Client-Server Connection".
#pragma once

#include <cstdint>

#include "proto/channel.hpp"

namespace mpsshim::proto {

inline constexpr std::uint32_t kMessageMagic = 0x6d50'5368;
inline constexpr char kClientSocketName[] = "mpsshim.sock";
inline constexpr char kControlSocketName[] = "control.sock";  // mpsctl: a line of text in, text out

enum class MessageType : std::uint32_t {
  hello = 1,
  welcome = 2,
  attach = 3,
  attached = 4,
  image_open = 5,
  image_opened = 6,
  image_seal = 7,
  done = 8,
  segment_create = 9,
  segment_created = 10,
  lease_replace = 11,
  lease_replaced = 12,
  image_offer = 13,
  lease_add = 15,
  lease_added = 16,
  memory_share = 17,
  memory_shared = 18,
  memory_open = 19,
  memory_opened = 20,
  segment_open = 21,
  output_take = 23,
  output_taken = 24,
  external_offer = 25,
  external_taken = 26,
};

// `status` is a CUresult (0 in requests). An answer with another status has no file descriptors and only a header that counts.
struct MessageHeader {
  std::uint32_t magic = kMessageMagic;
  MessageType type{};
  std::uint32_t status = 0;
  std::uint32_t reserved = 0;
};

struct Hello {
  MessageHeader header{.type = MessageType::hello};
  std::uint32_t layout_major = kLayoutMajor;
  std::uint32_t layout_minor = kLayoutMinor;
  std::uint64_t protocol_hash = 0;  // logged; differing releases still talk, by version.hpp and record sizes
};

// The version that is spoken from here on, which is the client's; with CUDA_ERROR_MPS_CONNECTION_FAILED the broker's own, which does not serve it.
struct Welcome {
  MessageHeader header{.type = MessageType::welcome};
  std::uint32_t layout_major = kLayoutMajor;
  std::uint32_t layout_minor = kLayoutMinor;
};

struct Attach {
  MessageHeader header{.type = MessageType::attach};
  std::uint32_t device = 0;  // ordinal in DriverFacts
  std::uint32_t reserved = 0;
};

// Device memory and pinned memory of this session lie in these ranges of the address space, in every process at the same place.
struct Lease {
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;
};

struct Attached {
  MessageHeader header{.type = MessageType::attached};
  std::uint64_t session = 0;  // stays the same when the session moves
  std::uint64_t epoch = 0;
  Lease device_lease;
  Lease pinned_lease;
  std::uint32_t lost = 0;  // CUresult: not 0 if this session did not survive its executor; sticky for the process
  std::uint32_t reserved = 0;
};

static_assert(sizeof(MessageHeader) == 16 && sizeof(Hello) == 32 && sizeof(Attached) == 72);

}  // namespace mpsshim::proto
