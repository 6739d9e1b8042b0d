// SPDX-License-Identifier: Apache-2.0
//
// A graph: nodes and the order between them (CUDA Driver API manual, "Graph Management"). CUDA leaves it to the caller
// not to use one graph from two threads at once; a mutex here keeps a mistake from becoming a crash.
// A node's work is immutable and shared: instantiating and updating copy pointers.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "broker/cpudriver/modules/launch.hpp"
#include "broker/cpudriver/streams/commands.hpp"
#include "broker/cpudriver/streams/event.hpp"

namespace mpsshim::cpudriver {

struct HostCall {
  CUhostFn function = nullptr;
  void* data = nullptr;
};
struct NoWork {};
struct EventMark {
  std::shared_ptr<Event> event;
};

using NodeWork = std::variant<NoWork, KernelLaunch, MemoryOperations, Copy, Fill, HostCall, EventMark>;
using NodeWorkPtr = std::shared_ptr<const NodeWork>;

CUgraphNodeType type_of(const NodeWork& work);

class Graph;

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
  };
  // The nodes in an order that keeps all dependencies, in the order of adding where these leave a choice.
  // False: a cycle.
  [[nodiscard]] bool in_order(std::vector<Step>& steps) const;
  std::vector<CUgraphNode> nodes() const;
  std::vector<CUgraphNode> roots() const;

 private:
  GraphNode* own(CUgraphNode handle) const;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<GraphNode>> nodes_;  // also in their handle table
};

}  // namespace mpsshim::cpudriver
