// SPDX-License-Identifier: Apache-2.0
//
// A graph: nodes and the order between them (CUDA Driver API manual, "Graph Management"). CUDA leaves it to the caller
// not to use one graph from two threads at once; a mutex here keeps a mistake from becoming a crash.
// A node's work is immutable and shared: instantiating and updating copy pointers.
#pragma once

#include <cuda.h>

#include <memory>
#include <variant>
#include <vector>

#include "broker/cpudriver/graphs/condition.hpp"
#include "broker/cpudriver/modules/launch.hpp"
#include "broker/cpudriver/streams/commands.hpp"
#include "broker/cpudriver/streams/event.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

struct HostCall {
  CUhostFn function = nullptr;
  void* data = nullptr;
};
struct NoWork {};
struct EventMark {
  std::shared_ptr<Event> event;
};

class Graph;
// Bodies are graphs that are filled like any other and end with their node.
struct Conditional {
  std::shared_ptr<Condition> condition;
  int type = 0;  // CUgraphConditionalNodeType
  std::vector<std::shared_ptr<Graph>> bodies;
  std::shared_ptr<std::vector<CUgraph>> handles;  // of the bodies, as the application sees them
};

using NodeWork = std::variant<NoWork, KernelLaunch, MemoryOperations, Copy, Fill, HostCall, EventMark, Conditional>;
using NodeWorkPtr = std::shared_ptr<const NodeWork>;

CUgraphNodeType type_of(const NodeWork& work);

// A node is named by its address, which is its CUgraphNode.
struct GraphNode {
  Graph* graph = nullptr;
  NodeWorkPtr work;
  std::vector<GraphNode*> dependencies;  // of the same graph
};

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // CUDA_ERROR_INVALID_VALUE: a dependency is of another graph, or named twice.
  CUresult add(NodeWork work, const CUgraphNode* dependencies, std::size_t count, CUgraphNode& node);
  CUresult add_dependencies(const CUgraphNode* from, const CUgraphNode* to, std::size_t count);
  void set_work(GraphNode& node, NodeWork work);
  CUresult remove(GraphNode& node);

  struct Step {
    const GraphNode* node = nullptr;
    NodeWorkPtr work;
    bool is_enabled = true;
    std::vector<std::vector<Step>> bodies = {};  // of a conditional node
  };
  // The nodes in an order that keeps all dependencies, in the order of adding where these leave a choice.
  // False: a cycle, here or in a body.
  [[nodiscard]] bool in_order(std::vector<Step>& steps) const;
  std::vector<CUgraphNode> nodes() const;

  // A conditional handle of this graph. The conditional node of one must be in the same graph, or in a body in it.
  std::uint64_t make_condition(std::uint32_t default_value, bool is_assigned);
  std::shared_ptr<Condition> find_condition(std::uint64_t handle) const;
  std::vector<std::shared_ptr<Condition>> conditions() const;
  // Set before anybody else has the graph: it is a body in that one.
  void set_outer(Graph* outer) { outer_ = outer; }
  bool is_body() const { return outer_ != nullptr; }
  std::vector<CUgraphNode> roots() const;

 private:
  GraphNode* own(CUgraphNode handle) const;

  static void forget_bodies(const GraphNode& node);

  Graph* outer_ = nullptr;  // set before it is known; outlives its bodies' use
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<Condition>> conditions_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<GraphNode>> nodes_ GUARDED_BY(mutex_);  // also in their handle table
};

}  // namespace mpsshim::cpudriver
