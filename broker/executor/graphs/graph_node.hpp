// SPDX-License-Identifier: Apache-2.0
// A node of a session's executable graph, decoded and checked: ids are objects, memory is what CheckedMemory has made. Made by the session's worker;
// from then on nothing in it is looked up or checked again. It keeps what it names: the image of its kernel, the event that it records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/turn_budget.hpp"
#include "broker/executor/green/green_context.hpp"
#include "broker/executor/operations/stream_op.hpp"
#include "proto/graph_nodes.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker {

class MemoryMap;
struct GraphScope;

struct EmptyNode {};

struct KernelNode {
  LaunchOp launch;  // owns its parameters and attributes
  ImageUse image;
  GreenContextRef green;       // whose multiprocessors it runs on; null: the whole device's
  bool follows_share = false;  // they are the session's, and not of a green context that the client named
};

// Records a driver event of the node's own. At each launch of the graph the client's event comes to mean that one.
struct EventNode {
  proto::EventId event;
  PointRef point;
};

class ConditionedGraph;
struct ConditionBodies;

// Runs one of its bodies, or none, or one again and again, by a value that kernels set. Only in the driver's graph that its handle was made in.
struct ConditionNode {
  proto::GraphCondition condition;
  std::shared_ptr<ConditionedGraph> graph;
  std::shared_ptr<ConditionBodies> bodies;
};

using NodeWork = std::variant<EmptyNode, KernelNode, CheckedBoxCopy, CheckedFill, EventNode, ConditionNode>;

struct GraphNode {
  NodeWork work;
  // The kernel with the most parameters that it has had, where it holds one with fewer: the driver's node has room for these.
  std::optional<KernelNode> widest{};
  bool is_enabled = true;
  std::vector<std::uint32_t> dependencies;  // earlier nodes
  CUgraphNode handle = nullptr;

  // Other work of the same kind.
  void hold(NodeWork next);
};

struct ConditionBodies {
  std::vector<std::vector<GraphNode>> of;
};

// What a node holds from some launch on. The kind of its work is the node's.
struct GraphUpdate {
  std::uint32_t index = 0;
  bool is_enabled = true;
  NodeWork work;
};

// Memory that a node reads or writes by an address of its own, host's or device's; where a kernel goes nobody knows.
struct NodeRange {
  enum class Where : std::uint8_t { device, pinned, either };
  Where where{};
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;
};
// Of the node, and of its bodies, in which none can be disabled.
void add_ranges(const NodeWork& work, std::vector<NodeRange>& ranges);
[[nodiscard]] bool owns_all(const MemoryMap& memory, std::span<const NodeRange> ranges);

// Why a node cannot be had.
using NodeFault = Refusal;

// On the session's worker. `depth`: how many conditional nodes it lies in.
[[nodiscard]] NodeFault read_node_work(GraphScope& scope, const proto::GraphNodeHeader& header, std::span<const std::byte> payload, NodeWork& work,
                                       unsigned depth = 0);
// A whole graph, `node_count` nodes, or the next of them, as far as the budget goes: `description` is then what is left of it. `failed_node`: the one
// that a fault was found in, else their number.
[[nodiscard]] NodeFault read_graph_nodes(GraphScope& scope, std::span<const std::byte>& description, std::uint32_t node_count, unsigned depth,
                                         std::vector<GraphNode>& nodes, std::uint32_t& failed_node, TurnBudget& budget);

}  // namespace mpsshim::broker
