// SPDX-License-Identifier: Apache-2.0
// What a client with a session asks of the control process, over the socket and in the form of handshake.hpp.
//
// clang-format off
//   client                             control process
//   ImageOpen                       →  ImageOpened + [memory file to fill]
//   ImageOffer                      →  ImageOpened     the same with the content's digest: no file if the content is known
//   ImageSeal                       →  Done            the content is sealed and given the id of equal content, if there is any
//   SegmentCreate                   →  SegmentCreated + [memory file]          staging or pinned memory; the executor knows it first
//   LeaseAdd                        →  LeaseAdded      a further device range; the executor knows it first, used after LeaseUse
//   LeaseReplace                    →  LeaseReplaced   the client could not keep that address range free in its own process
//   MemoryShare                     →  MemoryShared    a name for memory of this session, to be given to other clients
//   MemoryOpen                      →  MemoryOpened    memory of that name; the executor knows it first, used by MemoryAdopt
//   ExternalOffer + [descriptor]    →  ExternalTaken   memory of another interface; the executor has it first, used by ExternalImport
//   SegmentOpen                     →  SegmentCreated + [memory file]          a segment of events of another session, as one of its own
//   OutputTake                      →  OutputTaken     text that its kernels have printed, in their order
// clang-format on
#pragma once

#include <cstdint>

#include "proto/content_hash.hpp"
#include "proto/handshake.hpp"

namespace mpsshim::proto {

struct ImageOpen {
  MessageHeader header{.type = MessageType::image_open};
  std::uint64_t size_bytes = 0;
  std::uint64_t hash = 0;    // not used: see ImageOffer
  std::uint32_t source = 0;  // reserved for file-backed images
  std::uint32_t reserved = 0;
};

struct ImageOffer {
  MessageHeader header{.type = MessageType::image_offer};
  std::uint64_t size_bytes = 0;
  ContentDigest digest{};
};

struct ImageOpened {
  MessageHeader header{.type = MessageType::image_opened};
  std::uint64_t image = 0;
};

struct ImageSeal {
  MessageHeader header{.type = MessageType::image_seal};
  std::uint64_t image = 0;
};

// `image`: the id to use in ModuleLoad; differs from the one opened when the same content was known.
struct Done {
  MessageHeader header{.type = MessageType::done};
  std::uint64_t image = 0;
};

enum class SegmentPurpose : std::uint32_t { staging = 1, pinned = 2, events = 3 };  // events: pinned, see shared_events.hpp
[[nodiscard]] constexpr bool has_own_address(SegmentPurpose purpose) { return purpose != SegmentPurpose::staging; }

struct SegmentCreate {
  MessageHeader header{.type = MessageType::segment_create};
  SegmentPurpose purpose{};
  std::uint32_t reserved = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t address = 0;  // pinned, events: chosen by the client inside its pinned lease; staging: 0
};

struct SegmentCreated {
  MessageHeader header{.type = MessageType::segment_created};
  std::uint64_t segment = 0;  // id to use in SegmentMap
};

struct LeaseReplace {
  MessageHeader header{.type = MessageType::lease_replace};
  Lease refused;
};

struct LeaseReplaced {
  MessageHeader header{.type = MessageType::lease_replaced};
  Lease lease;
};

// For a session whose device range has no room left for a chunk of `size_bytes`. A range the client cannot keep free goes back by LeaseEnd.
struct LeaseAdd {
  MessageHeader header{.type = MessageType::lease_add};
  std::uint64_t size_bytes = 0;
};

struct LeaseAdded {
  MessageHeader header{.type = MessageType::lease_added};
  Lease lease;
};

// A random number: who has it has been given it. It means the memory for as long as its session holds that.
struct MemoryName {
  std::uint64_t word[2] = {};
  bool operator==(const MemoryName&) const = default;
};

struct MemoryShare {
  MessageHeader header{.type = MessageType::memory_share};
  std::uint64_t object = 0;  // address of a chunk, id of memory made by MemoryCreate, or id of a segment of events
};

struct MemoryShared {
  MessageHeader header{.type = MessageType::memory_shared};
  MemoryName name;
};

struct MemoryOpen {
  MessageHeader header{.type = MessageType::memory_open};
  MemoryName name;
  std::uint64_t memory = 0;  // the id that it is to have in this session: MemoryId, or ExternalMemoryId for ExternalImport
};

struct MemoryOpened {
  MessageHeader header{.type = MessageType::memory_opened};
  std::uint64_t size_bytes = 0;
  std::uint32_t is_own = 0;  // 1: it is of the asking session itself
  std::uint32_t reserved = 0;
};

// A descriptor that is not of the kind its type asks for, or has less than `size_bytes` behind it, is CUDA_ERROR_INVALID_VALUE, and goes to nobody.
struct ExternalOffer {
  MessageHeader header{.type = MessageType::external_offer};
  std::uint64_t memory = 0;  // the id that it is to have (ExternalMemoryId)
  std::uint64_t size_bytes = 0;
  std::uint32_t handle_type = 0;  // CUexternalMemoryHandleType
  std::uint32_t reserved = 0;
};

struct ExternalTaken {
  MessageHeader header{.type = MessageType::external_taken};
};

struct SegmentOpen {
  MessageHeader header{.type = MessageType::segment_open};
  MemoryName name;
  std::uint64_t size_bytes = 0;  // as its maker has it
  std::uint64_t address = 0;     // as of SegmentCreate
};

// Asked until nothing is left, where ChannelHeader::output_waiting says so, and once when a session has failed.
struct OutputTake {
  MessageHeader header{.type = MessageType::output_take};
};

struct OutputTaken {
  MessageHeader header{.type = MessageType::output_taken};
  std::uint32_t stream = 0;  // 1: for standard output, 2: for standard error; 0: nothing is left
  std::uint32_t size_bytes = 0;
  std::uint64_t dropped_bytes = 0;  // came before and were too much to keep
  char text[3968] = {};
};

inline constexpr std::uint32_t kOutputSinceMinor = 3;  // clients that speak less have their text in the broker's log

static_assert(sizeof(OutputTaken) == 4000);

}  // namespace mpsshim::proto
