// SPDX-License-Identifier: Apache-2.0
// Records as a correct client writes them, nearly: small numbers with which much fits, and now and then such as overflow, or name what is
// another's. Of one session; what it has is the scenery.
#pragma once

#include <cstdint>
#include <cstring>

#include "gen/records.hpp"
#include "proto/channel.hpp"
#include "proto/graph_nodes.hpp"
#include "proto/record.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"

namespace mpsshim::fuzz {

inline constexpr std::uint64_t kChunkBytes = 2u << 20;
inline constexpr std::uint64_t kSegmentBytes = 64u << 10;   // of pinned and of staging memory
inline constexpr std::uint64_t kExternalBytes = 64u << 10;  // of external memory, of which a buffer is mapped
inline constexpr std::uint32_t kExecs = 3;                  // ids of executable graphs
inline constexpr std::uint32_t kGraphs = 2;                 // ids of graphs with conditions
inline constexpr std::uint32_t kArrays = 6;                 // ids of arrays

// Where what a session has begins, and another's.
struct Scenery {
  std::uint64_t chunk = 0;
  std::uint64_t foreign_chunk = 0;
  std::uint64_t pinned = 0;
  std::uint64_t buffer = 0;  // of external memory
  std::uint64_t foreign_buffer = 0;
  std::uint64_t tameness = 1;  // so much rarer is what ends a session, or is refused: else hardly anything is ever made of several records
};

// What a session has been told to make so far: a correct client makes nothing twice.
struct Made {
  unsigned execs[kExecs] = {};  // graph records since; 0: there is none
};

class RecordMaker {
 public:
  RecordMaker(Input& input, Random& random, const Scenery& scenery, Made& made) : input_(input), random_(random), scenery_(scenery), made_(made) {}

  // Of any subject: streams, events, launches, modules, chunks, leases.
  void add_plain(proto::StreamId stream);
  // With addresses, pitches, offsets and sizes; graphs and external memory among them.
  void add_memory(proto::StreamId stream);
  // Descriptions of executable graphs with nodes of every kind, their changes, launches and ends, and conditions.
  void add_graph(proto::StreamId stream);
  // Arrays, their levels, textures, surfaces, what is copied from and to them, and their ends.
  void add_array(proto::StreamId stream);
  void add_array_copy(proto::StreamId stream);
  void add_external();
  // What a session has begins to end: chunks, mappings, ranges, segments.
  void add_end();
  [[nodiscard]] proto::StreamId some_stream() { return proto::StreamId::make(static_cast<std::uint32_t>(random_() % 3), 1); }

 private:
  template <typename Record>
  void add(const Record& record, proto::StreamId stream, std::size_t trailing_bytes = 0) {
    proto::RecordHeader header{
        proto::record_size(Record::kBodyBytes, trailing_bytes),
        static_cast<std::uint16_t>(Record::kId),
        Record::kIsCall ? static_cast<std::uint16_t>(oddly(64) ? random_() % proto::kReplySlots : random_() % 4) : proto::kNoReplySlot,
        0,
        static_cast<std::uint32_t>(trailing_bytes),
        stream};
    append(input_, header);
    const std::size_t end = input_.size() + header.size_bytes - sizeof header;
    if constexpr (Record::kBodyBytes > 0) append(input_, record);
    while (input_.size() < end) input_.push_back(static_cast<std::uint8_t>(random_() % 8));
  }
  template <typename Record>
  void add_with(const Record& record, const Input& trailing, proto::StreamId stream = {}) {
    const std::size_t at = input_.size() + sizeof(proto::RecordHeader) + Record::kBodyBytes;
    add(record, stream, trailing.size());
    if (!trailing.empty()) std::memcpy(input_.data() + at, trailing.data(), trailing.size());
  }

  [[nodiscard]] bool oddly(std::uint64_t one_in) { return random_() % (one_in * scenery_.tameness) == 0; }
  [[nodiscard]] bool is_tame() { return scenery_.tameness != 1 && random_() % scenery_.tameness != 0; }
  [[nodiscard]] std::uint32_t small(std::uint64_t below) { return static_cast<std::uint32_t>(random_() % below); }
  [[nodiscard]] std::uint64_t some_size() { return random_() % 8 == 0 ? random_() : random_() % (kChunkBytes + 4096); }
  [[nodiscard]] std::uint64_t some_address() { return scenery_.chunk + (random_() % 8 == 0 ? random_() : random_() % kChunkBytes); }
  // An address in one of its own kinds of memory, and rarely one that is not.
  [[nodiscard]] std::uint64_t some_place(std::uint64_t space);
  // Sizes, pitches and counts of rows: small ones, with which much fits, and such as overflow.
  [[nodiscard]] std::uint64_t some_count(std::uint64_t usual);
  [[nodiscard]] std::uint64_t some_range() { return scenery_.chunk + kChunkBytes * (1 + random_() % 8); }
  [[nodiscard]] proto::GraphCopy some_copy();
  [[nodiscard]] proto::FillRecord some_fill();
  void add_node(Input& nodes, std::uint32_t index, unsigned depth);
  void add_work(Input& nodes, proto::GraphNodeHeader header, unsigned depth);
  void add_condition(Input& payload, unsigned depth);
  void add_sampler();

  Input& input_;
  Random& random_;
  const Scenery scenery_;
  Made& made_;
};

}  // namespace mpsshim::fuzz
