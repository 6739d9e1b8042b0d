// SPDX-License-Identifier: Apache-2.0
// Executable graphs: nodes of all kinds, bodies of conditional ones included, and what becomes of graphs.
#include <cuda.h>

#include "tests/fuzz/support/record_maker.hpp"

namespace mpsshim::fuzz {

namespace {

constexpr std::uint64_t kFirstCondition = 0x101;  // handles as the fake driver counts them
constexpr unsigned kDeepest = 3;
constexpr std::uint32_t kParameterBytes = 16;

void pad(Input& bytes) { bytes.resize((bytes.size() + 7) / 8 * 8); }

}  // namespace

proto::GraphCopy RecordMaker::some_copy() {
  proto::GraphCopy copy{};
  copy.destination_space = static_cast<proto::MemorySpace>(oddly(16) ? random_() % 4 : random_() % 2);
  copy.source_space = static_cast<proto::MemorySpace>(random_() % 2);
  copy.destination = some_place(proto::number_in(copy.destination_space));
  copy.source = some_place(proto::number_in(copy.source_space));
  copy.width_bytes = some_count(64);
  copy.height = some_count(8);
  copy.depth = some_count(2);
  copy.destination_pitch_bytes = some_count(128);
  copy.destination_rows = some_count(16);
  copy.source_pitch_bytes = some_count(128);
  copy.source_rows = some_count(16);
  // Most are such as fit, or no graph of several nodes is ever made.
  if (is_tame() || random_() % 4 != 0) copy.height = copy.depth = 1;
  return copy;
}

proto::FillRecord RecordMaker::some_fill() {
  proto::FillRecord fill{some_place(random_() % 2), some_count(256), some_count(64), some_count(8), 7, 1u << random_() % 3};
  if (is_tame() || random_() % 4 != 0) fill.height = 1;
  return fill;
}

void RecordMaker::add_condition(Input& payload, unsigned depth) {
  proto::GraphCondition condition{};
  condition.handle = oddly(16) ? random_() : kFirstCondition + random_() % 4;
  condition.type = small(oddly(16) ? 5 : 3);
  condition.body_count = oddly(16) ? small(4) : 1;
  append(payload, condition);
  for (std::uint32_t i = 0; i < condition.body_count; ++i) {
    Input nodes;
    proto::GraphBody body{small(3), 0};
    for (std::uint32_t node = 0; node < body.node_count; ++node) add_node(nodes, node, depth + 1);
    body.bytes = static_cast<std::uint32_t>(nodes.size());
    if (oddly(32)) (random_() % 2 == 0 ? body.node_count : body.bytes) += 8;
    append(payload, body);
    payload.insert(payload.end(), nodes.begin(), nodes.end());
  }
}

void RecordMaker::add_work(Input& nodes, proto::GraphNodeHeader header, unsigned depth) {
  Input payload;
  const std::uint64_t kind = random_() % 64;
  if (kind < 24) {
    header.kind = proto::GraphNodeKind::copy;
    append(payload, some_copy());
  } else if (kind < 40) {
    header.kind = proto::GraphNodeKind::fill;
    append(payload, some_fill());
  } else if (kind < 50) {
    header.kind = proto::GraphNodeKind::kernel;
    proto::LaunchRecord launch{};
    launch.function = proto::FunctionId::make(oddly(32) ? 1 : 0, 1);
    launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
    launch.parameter_bytes = oddly(32) ? static_cast<std::uint32_t>(random_()) : kParameterBytes;
    launch.attribute_count = oddly(16) ? small(40) : 0;
    if (oddly(16)) launch.flags.bits = small(4);
    append(payload, launch);
    payload.resize(payload.size() + kParameterBytes + (launch.attribute_count % 40) * sizeof(CUlaunchAttribute) * (random_() % 2));
    append(payload, proto::GreenContextId::make(small(2), 1));
  } else if (kind < 54) {
    header.kind = proto::GraphNodeKind::event_record;
    append(payload, proto::EventId::make(small(4), 1));
  } else if (kind < 60 && depth < kDeepest) {
    header.kind = proto::GraphNodeKind::conditional;
    add_condition(payload, depth);
  } else {
    header.kind = static_cast<proto::GraphNodeKind>(oddly(32) ? random_() % 8 : 0);
  }
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  if (oddly(64)) header.payload_bytes -= small(payload.size() + 1);
  append(nodes, header);
  if (header.dependency_count != 0) append(nodes, oddly(32) ? header.index : header.index - 1);
  pad(nodes);
  payload.resize(header.payload_bytes);
  nodes.insert(nodes.end(), payload.begin(), payload.end());
  pad(nodes);
}

void RecordMaker::add_node(Input& nodes, std::uint32_t index, unsigned depth) {
  proto::GraphNodeHeader header{};
  header.index = index;
  header.is_enabled = random_() % 8 != 0;
  header.dependency_count = index != 0 && random_() % 2 == 0 ? 1 : 0;
  add_work(nodes, header, depth);
}

void RecordMaker::add_graph(proto::StreamId stream) {
  const std::uint32_t index = small(kExecs);
  const auto exec = proto::GraphExecId::make(index, 1);
  const auto graph = proto::GraphId::make(small(kGraphs), 1);
  for (unsigned& age : made_.execs) age += age != 0 ? 1 : 0;
  const bool is_made = oddly(16) ? random_() % 2 == 0 : made_.execs[index] != 0;
  Input nodes;
  if (random_() % 12 == 0) {
    if (random_() % 4 == 0) return add(proto::ConditionsEndRecord{graph}, {});
    if (random_() % 2 == 0) return add(proto::EventRecordRecord{proto::EventId::make(small(4), 1), small(8), 0}, stream);
    return add(proto::ConditionCreateRecord{graph, oddly(16) ? random_() : 0, small(2), small(oddly(32) ? 4 : 2)}, {});
  }
  if (!is_made) {
    made_.execs[index] = 1;
    const std::uint32_t count = small(5);
    for (std::uint32_t i = 0; i < count; ++i) add_node(nodes, i, 0);
    add_with(proto::GraphNodesRecord{exec}, nodes);
    const std::uint32_t told = oddly(32) ? count + small(3) : count;
    return add(proto::GraphInstantiateRecord{exec, oddly(16) ? random_() % 16 : 0, told, oddly(16)}, {});
  }
  // One that is being made is not ended.
  constexpr unsigned kOld = 40;
  if (random_() % 16 == 0 && (made_.execs[index] > kOld || oddly(4))) {
    made_.execs[index] = 0;
    return add(proto::GraphExecDestroyRecord{exec}, {});
  }
  if (random_() % 6 != 0) return add(proto::GraphLaunchRecord{exec}, stream);
  add_node(nodes, small(3), 0);
  add_with(proto::GraphSetNodesRecord{exec, oddly(32), 0}, nodes);
}

void RecordMaker::add_end() {
  switch (random_() % 6) {
    case 0: return add(proto::ChunkReleaseRecord{random_() % 2 == 0 ? scenery_.chunk : some_range()}, {});
    case 1: return add(proto::SegmentUnmapRecord{1 + random_() % 4}, {});
    case 2: return add(proto::SegmentMapRecord{1 + random_() % 8, 0, 0}, {});
    case 3: return add(proto::ChunkCreateRecord{kChunkBytes}, {});
    case 4: return add(proto::MappingEndRecord{some_range()}, {});
    default: return add(proto::ExternalUnmapRecord{scenery_.buffer}, {});
  }
}

}  // namespace mpsshim::fuzz
