// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/graphs/graph_node.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "broker/executor/chains/chain_graph.hpp"
#include "broker/executor/context/launch_cluster.hpp"
#include "broker/executor/graphs/graph_scope.hpp"
#include "broker/executor/memory/memory_map.hpp"
#include "broker/executor/operations/launch_attributes.hpp"
#include "gen/records.hpp"

namespace mpsshim::broker {

namespace {

template <typename T>
bool take(std::span<const std::byte>& bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
  return true;
}

constexpr std::uint32_t kSwitchCondition = 2;  // CU_GRAPH_COND_TYPE_SWITCH, since 12.8

NodeFault malformed(const char* what) { return {what, CUDA_SUCCESS}; }
NodeFault refused(CUresult result) { return {nullptr, result}; }

// The priority that a node has of its own, which a graph may be instantiated to go by.
void take_rank(const GraphScope& scope, LaunchOp& launch) {
  for (std::uint32_t i = 0; i < launch.attribute_count; ++i) {
    std::byte* const place = launch.owned.get() + launch.parameter_bytes + i * sizeof(CUlaunchAttribute);
    CUlaunchAttribute attribute;
    std::memcpy(&attribute, place, sizeof attribute);
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_PRIORITY) continue;
    attribute.value.priority = scope.parts.ranks.priority(scope.priority_rank, attribute.value.priority);
    std::memcpy(place, &attribute, sizeof attribute);
  }
}

NodeFault read_kernel(GraphScope& scope, std::span<const std::byte> payload, NodeWork& work) {
  proto::LaunchRecord record;
  if (!take(payload, record)) return malformed("a kernel node is too short");
  if (record.out_of_range() != nullptr) return malformed("a kernel node has flags that are none");
  if (!record.function.has_kind()) return malformed("a kernel node's function id is of another kind");
  const proto::Known<SessionFunction> function = scope.functions.find(record.function);
  if (!function) return refused(CUDA_ERROR_INVALID_HANDLE);
  if (function->references != nullptr) return refused(CUDA_ERROR_NOT_SUPPORTED);  // "kernels launched using graphs must not use references"
  const std::uint64_t padded = (std::uint64_t{record.parameter_bytes} + 7) / 8 * 8;
  if (record.attribute_count > kMaxLaunchAttributes) return malformed("a kernel node has more attributes than exist");
  if (padded + record.attribute_count * sizeof(CUlaunchAttribute) > payload.size()) return malformed("a kernel node's parameters exceed it");
  if (record.parameter_bytes < function->loaded->parameter_bytes) return malformed("a kernel node's parameters are shorter than the function's");
  const CUresult result = check_launch_attributes(payload.data() + padded, record.attribute_count);
  if (result != CUDA_SUCCESS) return refused(result);
  KernelNode node;
  if (record.flags.has(proto::LaunchFlag::of_green_context)) {
    std::span<const std::byte> behind = payload.subspan(padded + record.attribute_count * sizeof(CUlaunchAttribute));
    proto::GreenContextId id;
    if (!take(behind, id) || !id.has_kind()) return malformed("a kernel node has no green context's id");
    const proto::Known<GreenContextRef> green = scope.greens.find(id);
    if (!green) return refused(CUDA_ERROR_INVALID_CONTEXT);
    node.green = *green;
  }
  node.follows_share = node.green == nullptr;
  if (node.follows_share) node.green = scope.share;
  scope.uses_device_heap |= function->loaded->uses_device_heap;
  node.image = function->use;
  node.launch.function = function->loaded;
  node.launch.grid[0] = record.grid_x;
  node.launch.grid[1] = record.grid_y;
  node.launch.grid[2] = record.grid_z;
  node.launch.block[0] = record.block_x;
  node.launch.block[1] = record.block_y;
  node.launch.block[2] = record.block_z;
  node.launch.shared_bytes = record.shared_bytes;
  node.launch.parameter_bytes = static_cast<std::uint32_t>(padded);
  node.launch.attribute_count = record.attribute_count;
  node.launch.is_cooperative = record.flags.has(proto::LaunchFlag::cooperative);
  node.launch.data = payload.data();
  node.launch.own();
  ClusterShape cluster;  // a node of a client's gets it by its attributes, and the function may have the same
  if (scope.parts.has_clustered_nodes && !node.launch.is_cooperative)
    cluster = cluster_for_chain(node.launch.data + padded, record.attribute_count, node.launch.grid);
  if (const CUresult settled = settle_cluster(scope.parts, scope.session, *function->loaded, cluster); settled != CUDA_SUCCESS)
    return refused(settled);
  take_rank(scope, node.launch);
  work = std::move(node);
  return {};
}

bool is_own(const MemoryMap& memory, const NodeRange& range) {
  const bool may_be_device = range.where != NodeRange::Where::pinned;
  const bool may_be_pinned = range.where != NodeRange::Where::device;
  return (may_be_device && memory.owns_device(range.address, range.size_bytes)) ||
         (may_be_pinned && memory.owns_pinned(range.address, range.size_bytes));
}

// `found` is empty where the description has nothing to do, which a node may not.
template <typename T>
NodeFault take_checked(Checked<T> found, NodeWork& work) {
  if (!found) return found.refusal() ? found.refusal() : refused(CUDA_ERROR_INVALID_VALUE);
  work = std::move(*found);
  return {};
}

NodeFault read_copy(GraphScope& scope, std::span<const std::byte> payload, NodeWork& work) {
  proto::GraphCopy copy;
  if (!take(payload, copy)) return malformed("a copy node is too short");
  return take_checked(scope.memory.copy(copy), work);
}

NodeFault read_fill(GraphScope& scope, std::span<const std::byte> payload, NodeWork& work) {
  proto::FillRecord record;
  if (!take(payload, record)) return malformed("a fill node is too short");
  if (record.out_of_range() != nullptr) return malformed("a fill node's elements are of no such size");
  return take_checked(scope.memory.fill(record), work);
}

NodeFault read_event(GraphScope& scope, std::span<const std::byte> payload, NodeWork& work) {
  EventNode node;
  if (!take(payload, node.event)) return malformed("an event node is too short");
  if (!node.event.has_kind()) return malformed("an event node's id is of another kind");
  const proto::Known<SessionEvent> event = scope.events.find(node.event);
  if (!event) return refused(CUDA_ERROR_INVALID_HANDLE);
  const CUresult result = scope.parts.events.take(event->has_timing, node.point);
  if (result != CUDA_SUCCESS) return refused(scope.parts.faults.check(result, scope.session, "cuEventCreate"));
  work = std::move(node);
  return {};
}

// Bodies have what the GPU does by itself; an event's record is not among it.
bool may_be_in_body(const NodeWork& work) { return !std::holds_alternative<EventNode>(work); }

bool has_such_bodies(const proto::GraphCondition& condition) {
  switch (condition.type) {
    case CU_GRAPH_COND_TYPE_IF: return condition.body_count == 1 || condition.body_count == 2;
    case CU_GRAPH_COND_TYPE_WHILE: return condition.body_count == 1;
    case kSwitchCondition: return condition.body_count >= 1;
    default: return false;
  }
}

NodeFault read_condition(GraphScope& scope, std::span<const std::byte> payload, NodeWork& work, unsigned depth) {
  ConditionNode node;
  if (!take(payload, node.condition)) return malformed("a conditional node is too short");
  if (!has_such_bodies(node.condition)) return malformed("a conditional node has no such number of bodies");
  if (depth >= proto::kMostNestedConditions) return refused(CUDA_ERROR_NOT_SUPPORTED);
  node.graph = scope.conditions.find(node.condition.handle);
  if (node.graph == nullptr) return refused(CUDA_ERROR_INVALID_VALUE);
  node.bodies = std::make_shared<ConditionBodies>();
  for (std::uint32_t i = 0; i < node.condition.body_count; ++i) {
    proto::GraphBody body;
    if (!take(payload, body) || body.bytes > payload.size()) return malformed("a conditional node's bodies exceed it");
    std::vector<GraphNode> nodes;
    std::uint32_t failed_node = 0;
    std::span<const std::byte> description = payload.first(body.bytes);
    TurnBudget all = TurnBudget::unlimited();
    if (const NodeFault fault = read_graph_nodes(scope, description, body.node_count, depth + 1, nodes, failed_node, all)) return fault;
    for (const GraphNode& each : nodes) {
      if (!may_be_in_body(each.work)) return refused(CUDA_ERROR_NOT_SUPPORTED);
    }
    node.bodies->of.push_back(std::move(nodes));
    payload = payload.subspan(body.bytes);
  }
  work = std::move(node);
  return {};
}

constexpr std::uint64_t kStepsOfNode = 4;  // of TurnBudget

}  // namespace

void GraphNode::hold(NodeWork next) {
  const auto bytes_of = [](const KernelNode& kernel) { return kernel.launch.function->parameter_bytes; };
  auto* const before = std::get_if<KernelNode>(&work);
  if (const auto* const after = std::get_if<KernelNode>(&next); before != nullptr && after != nullptr) {
    if (!widest || bytes_of(*before) > bytes_of(*widest)) widest = std::move(*before);
    if (bytes_of(*after) >= bytes_of(*widest)) widest.reset();
  }
  work = std::move(next);
}

NodeFault read_graph_nodes(GraphScope& scope, std::span<const std::byte>& description, std::uint32_t node_count, unsigned depth,
                           std::vector<GraphNode>& nodes, std::uint32_t& failed_node, TurnBudget& budget) {
  proto::NodeReader reader(description);
  proto::GraphNodeHeader header;
  std::span<const std::byte> dependencies;
  std::span<const std::byte> payload;
  while (reader.next(header, dependencies, payload)) {
    failed_node = static_cast<std::uint32_t>(nodes.size());
    if (header.index != nodes.size()) return {"its nodes are not numbered in order", {}};
    // The driver cannot disable one there: it would run, and its memory would not be asked for again.
    if (depth > 0 && header.is_enabled == 0) return {"a node of a conditional node's body is disabled", {}};
    GraphNode node;
    node.is_enabled = header.is_enabled != 0;
    node.dependencies.resize(header.dependency_count);
    if (!dependencies.empty()) std::memcpy(node.dependencies.data(), dependencies.data(), dependencies.size());
    for (const std::uint32_t before : node.dependencies) {
      if (before >= nodes.size()) return {"a node comes before what it depends on", {}};
    }
    if (const NodeFault fault = read_node_work(scope, header, payload, node.work, depth)) return fault;
    nodes.push_back(std::move(node));
    description = description.subspan(proto::graph_node_bytes(header.dependency_count, header.payload_bytes));
    if (budget.is_spent_after(kStepsOfNode * nodes.size()) && !description.empty()) return {};
  }
  if (!reader.at_end() || nodes.size() != node_count) return {"its description is not that of so many nodes", {}};
  failed_node = node_count;
  return {};
}

NodeFault read_node_work(GraphScope& scope, const proto::GraphNodeHeader& header, std::span<const std::byte> payload, NodeWork& work, unsigned depth) {
  switch (header.kind) {
    case proto::GraphNodeKind::empty: work = EmptyNode{}; return {};
    case proto::GraphNodeKind::kernel: return read_kernel(scope, payload, work);
    case proto::GraphNodeKind::copy: return read_copy(scope, payload, work);
    case proto::GraphNodeKind::fill: return read_fill(scope, payload, work);
    case proto::GraphNodeKind::event_record: return read_event(scope, payload, work);
    case proto::GraphNodeKind::conditional: return read_condition(scope, payload, work, depth);
  }
  return malformed("a node is of an unknown kind");
}

void add_ranges(const NodeWork& work, std::vector<NodeRange>& ranges) {
  if (const auto* copy = std::get_if<CheckedBoxCopy>(&work)) {
    for (const CheckedBox* box : {&copy->destination(), &copy->source()}) {
      ranges.push_back({box->is_host() ? NodeRange::Where::pinned : NodeRange::Where::device, box->address(), box->size_bytes()});
    }
  } else if (const auto* fill = std::get_if<CheckedFill>(&work)) {
    ranges.push_back({NodeRange::Where::either, fill->destination(), fill->size_bytes()});
  } else if (const auto* condition = std::get_if<ConditionNode>(&work)) {
    for (const std::vector<GraphNode>& body : condition->bodies->of) {
      for (const GraphNode& node : body) add_ranges(node.work, ranges);
    }
  }
}

bool owns_all(const MemoryMap& memory, std::span<const NodeRange> ranges) {
  return std::ranges::all_of(ranges, [&](const NodeRange& range) { return is_own(memory, range); });
}

}  // namespace mpsshim::broker
