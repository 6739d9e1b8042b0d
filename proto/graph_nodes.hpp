// SPDX-License-Identifier: Apache-2.0
// How an executable graph is described in GraphNodes and GraphSetNodes: its nodes one after another, in an order that keeps all dependencies.
// A node: GraphNodeHeader, `dependency_count` numbers (u32) of earlier nodes, padding to 8, `payload_bytes` of payload, padding to 8.
// What the client calls child graphs, event waits and empty nodes is `empty` here, or taken apart: the executor knows work and order alone.
//
// Trust: all of it comes from the client. NodeReader checks that nodes lie within the bytes; what they hold is checked by who uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "gen/enums.hpp"

namespace mpsshim::proto {

inline constexpr unsigned kMostNestedConditions = 16;  // a body within a body

struct GraphNodeHeader {
  std::uint32_t index = 0;  // of the node, counted from 0
  GraphNodeKind kind{};
  std::uint16_t is_enabled = 1;
  std::uint32_t dependency_count = 0;  // 0 in GraphSetNodes: dependencies do not change
  std::uint32_t payload_bytes = 0;
};
static_assert(sizeof(GraphNodeHeader) == 16 && std::is_trivially_copyable_v<GraphNodeHeader>);

// A copy of `depth` slices of `height` rows of `width_bytes`. Addresses are those of the first byte; pitches count only where there is a second
// row or slice.
struct GraphCopy {
  std::uint64_t destination = 0;
  std::uint64_t source = 0;
  std::uint64_t width_bytes = 0;
  std::uint64_t height = 0;
  std::uint64_t depth = 0;
  std::uint64_t destination_pitch_bytes = 0;
  std::uint64_t destination_rows = 0;  // of a slice
  std::uint64_t source_pitch_bytes = 0;
  std::uint64_t source_rows = 0;
  MemorySpace destination_space = MemorySpace::device;  // or registered host memory
  MemorySpace source_space = MemorySpace::device;
  std::uint8_t reserved[6] = {};
};
static_assert(sizeof(GraphCopy) == 80 && std::is_trivially_copyable_v<GraphCopy>);

// A conditional node. Its bodies follow, each a GraphBody and the nodes, which are numbered within the body.
struct GraphCondition {
  std::uint64_t handle = 0;
  std::uint32_t type = 0;  // CUgraphConditionalNodeType
  std::uint32_t body_count = 0;
};
static_assert(sizeof(GraphCondition) == 16 && std::is_trivially_copyable_v<GraphCondition>);
struct GraphBody {
  std::uint32_t node_count = 0;
  std::uint32_t bytes = 0;  // of the nodes: a multiple of 8
};
static_assert(sizeof(GraphBody) == 8 && std::is_trivially_copyable_v<GraphBody>);

// Bytes from the first to the last of a box of rows; false if they do not fit an address space.
[[nodiscard]] constexpr bool box_extent(std::uint64_t width_bytes, std::uint64_t height, std::uint64_t depth, std::uint64_t pitch_bytes,
                                        std::uint64_t rows, std::uint64_t& bytes) {
  bytes = 0;
  if (width_bytes == 0 || height == 0 || depth == 0) return true;
  std::uint64_t slice = 0, skipped_rows = 0, skipped_slices = 0;
  if (height > 1 && pitch_bytes < width_bytes) return false;
  if (depth > 1 && rows < height) return false;
  if (depth > 1 && (__builtin_mul_overflow(pitch_bytes, rows, &slice) || __builtin_mul_overflow(slice, depth - 1, &skipped_slices))) return false;
  if (height > 1 && __builtin_mul_overflow(pitch_bytes, height - 1, &skipped_rows)) return false;
  return !__builtin_add_overflow(skipped_slices, skipped_rows, &bytes) && !__builtin_add_overflow(bytes, width_bytes, &bytes);
}

constexpr std::size_t graph_node_bytes(std::size_t dependencies, std::size_t payload_bytes) {
  return sizeof(GraphNodeHeader) + (dependencies * sizeof(std::uint32_t) + 7) / 8 * 8 + (payload_bytes + 7) / 8 * 8;
}

// Walks a description. `next` is false at its end and where what is left is no whole node; at_end() tells which.
class NodeReader {
 public:
  explicit NodeReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  [[nodiscard]] bool next(GraphNodeHeader& header, std::span<const std::byte>& dependencies, std::span<const std::byte>& payload) {
    if (rest_.size() < sizeof header) return false;
    std::memcpy(&header, rest_.data(), sizeof header);
    const std::size_t dependency_bytes = std::size_t{header.dependency_count} * sizeof(std::uint32_t);
    if (graph_node_bytes(header.dependency_count, header.payload_bytes) > rest_.size()) return false;
    dependencies = rest_.subspan(sizeof header, dependency_bytes);
    payload = rest_.subspan(sizeof header + (dependency_bytes + 7) / 8 * 8, header.payload_bytes);
    rest_ = rest_.subspan(graph_node_bytes(header.dependency_count, header.payload_bytes));
    return true;
  }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace mpsshim::proto
