// SPDX-License-Identifier: Apache-2.0
// Messages between a client and the control process, over the socket `mpsshim.sock` in the pipe directory. One request, one answer; a client
// process uses one connection under a lock. Each message is one packet: a MessageHeader, a plain structure, file descriptors where noted.
//
// clang-format off
//   client                             control process
//   Hello + [pidfd of itself]       →  Welcome + [driver facts, read only]     no session yet: facts only
//   Attach                          →  Attached + [channel, fences, ring doorbell, completion doorbell]
//   ImageOpen                       →  ImageOpened + [memory file to fill]
//   ImageOffer                      →  ImageOpened     the same with the content's digest: no file if the content is known
//   ImageSeal                       →  Done            the content is sealed and given the id of equal content, if there is any
//   SegmentCreate                   →  SegmentCreated + [memory file]          staging or pinned memory; the executor knows it first
//   LeaseAdd                        →  LeaseAdded      a further device range; the executor knows it first, used after LeaseUse
//   LeaseReplace                    →  LeaseReplaced   the client could not keep that address range free in its own process
//   MemoryShare                     →  MemoryShared    a name for memory of this session, to be given to other clients
//   MemoryOpen                      →  MemoryOpened    memory of that name; the executor knows it first, used by MemoryAdopt
//   SegmentOpen                     →  SegmentCreated + [memory file]          a segment of events of another session, as one of its own
//   OutputTake                      →  OutputTaken     text that its kernels have printed, in their order
//   (hang-up or the pidfd readable)    the session ends
// clang-format on
//
// These structures keep their sizes for good: what is added is a message of its own, which an older client does not send.
// After SessionState::moved the client sends Attach again on the same connection and gets a new channel and epoch with its memory in place.
// Semantics of limits and refusals follow NVIDIA's MPS manual, "Client-Server Connection".
#pragma once

#include <cstdint>

#include "proto/channel.hpp"
#include "proto/content_hash.hpp"

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
  std::uint64_t memory = 0;  // the id that it is to have in this session
};

struct MemoryOpened {
  MessageHeader header{.type = MessageType::memory_opened};
  std::uint64_t size_bytes = 0;
  std::uint32_t is_own = 0;  // 1: it is of the asking session itself
  std::uint32_t reserved = 0;
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

static_assert(sizeof(MessageHeader) == 16 && sizeof(Hello) == 32 && sizeof(Attached) == 72 && sizeof(OutputTaken) == 4000);

}  // namespace mpsshim::proto
