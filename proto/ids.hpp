// SPDX-License-Identifier: Apache-2.0
// Ids of objects. The client chooses them, so creating an object costs no round trip; the broker checks every one it receives against the
// session's own table (HandleTable) and never uses one as an address. The same 64 bits are the handle that the application holds
// (CUstream, CUmodule, ...): no handle is ever dereferenced by either side, and a stale or forged one is noticed by kind and generation.
#pragma once

#include <cstdint>
#include <type_traits>

namespace mpsshim::proto {

// Numbers are on the wire: append only.
enum class HandleKind : std::uint8_t {
  none = 0,
  stream = 1,
  event = 2,
  module = 3,
  function = 4,
  context = 5,
  library = 6,
  kernel = 7,
  graph = 8,
  graph_node = 9,
  graph_exec = 10,
  memory_pool = 11,
  allocation = 12,
  array = 13,
  texture = 14,
  surface = 15,
  green_context = 16,
  link_state = 17,
  resource_descriptor = 18,  // the client's alone
  reference = 19,            // texture and surface references of modules
  external_memory = 20,      // imported from another interface
};

inline constexpr std::uint32_t kGenerationBits = 24;
inline constexpr std::uint32_t kGenerationMask = (1u << kGenerationBits) - 1;

// Of the generation the upper bits are the realm of the table that has made the id (HandleTable): a client's sessions are told apart by it.
inline constexpr std::uint32_t kRealmBits = 4;
inline constexpr std::uint32_t kRealms = 1u << kRealmBits;
inline constexpr std::uint32_t kRealmShift = kGenerationBits - kRealmBits;

// index: bits 0-31, generation: bits 32-55 (never 0 in a valid id), kind: bits 56-63.
template <HandleKind Kind>
struct Id {
  std::uint64_t value = 0;

  static constexpr Id make(std::uint32_t index, std::uint32_t generation) {
    return Id{(static_cast<std::uint64_t>(Kind) << 56) | (static_cast<std::uint64_t>(generation & kGenerationMask) << 32) | index};
  }
  [[nodiscard]] constexpr std::uint32_t index() const { return static_cast<std::uint32_t>(value); }
  [[nodiscard]] constexpr std::uint32_t generation() const { return static_cast<std::uint32_t>(value >> 32) & kGenerationMask; }
  [[nodiscard]] constexpr std::uint32_t realm() const { return generation() >> kRealmShift; }
  [[nodiscard]] constexpr bool has_kind() const { return static_cast<HandleKind>(value >> 56) == Kind && generation() != 0; }
  constexpr bool operator==(const Id&) const = default;
};

using StreamId = Id<HandleKind::stream>;
using EventId = Id<HandleKind::event>;
using ModuleId = Id<HandleKind::module>;
using FunctionId = Id<HandleKind::function>;
using ArrayId = Id<HandleKind::array>;  // arrays and mipmapped arrays
using GraphId = Id<HandleKind::graph>;
using GraphNodeId = Id<HandleKind::graph_node>;
using GraphExecId = Id<HandleKind::graph_exec>;
using GreenContextId = Id<HandleKind::green_context>;
using ReferenceId = Id<HandleKind::reference>;
using MemoryId = Id<HandleKind::allocation>;  // of cuMemCreate
using ExternalMemoryId = Id<HandleKind::external_memory>;

static_assert(sizeof(StreamId) == 8 && std::is_trivially_copyable_v<StreamId>);
static_assert(StreamId::make(7, 3).index() == 7 && StreamId::make(7, 3).generation() == 3 && StreamId::make(7, 3).has_kind());

// Every session has its NULL stream from the start, under this id.
inline constexpr StreamId kNullStream = StreamId::make(0, 1);

}  // namespace mpsshim::proto
