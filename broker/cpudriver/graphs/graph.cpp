// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/graphs/graph.hpp"

#include <algorithm>
#include <unordered_map>

#include "broker/cpudriver/handle_table.hpp"

namespace mpsshim::cpudriver {

CUgraphNodeType type_of(const NodeWork& work) {
  struct Visitor {
    CUgraphNodeType operator()(const NoWork&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const KernelLaunch&) const { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const MemoryOperations&) const { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const Copy&) const { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const Fill&) const { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const HostCall&) const { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const EventMark&) const { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    CUgraphNodeType operator()(const Conditional&) const { return CU_GRAPH_NODE_TYPE_CONDITIONAL; }
  };
  return std::visit(Visitor{}, work);
}

Graph::~Graph() {
  for (const auto& node : nodes_) {
    forget_bodies(*node);
    HandleTable<GraphNode>::get().remove(node.get());
  }
}

// What is instantiated keeps the steps, not the graphs.
void Graph::forget_bodies(const GraphNode& node) {
  const auto* conditional = std::get_if<Conditional>(node.work.get());
  if (conditional == nullptr) return;
  for (const auto& body : conditional->bodies) HandleTable<Graph>::get().remove(body.get());
}

std::uint64_t Graph::make_condition(std::uint32_t default_value, bool is_assigned) {
  if (outer_ != nullptr) return outer_->make_condition(default_value, is_assigned);
  const std::lock_guard lock(mutex_);
  conditions_.push_back(Conditions::get().make(default_value, is_assigned));
  return conditions_.back()->handle();
}

std::shared_ptr<Condition> Graph::find_condition(std::uint64_t handle) const {
  if (outer_ != nullptr) return outer_->find_condition(handle);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(conditions_.begin(), conditions_.end(), [handle](const auto& each) { return each->handle() == handle; });
  return found != conditions_.end() ? *found : nullptr;
}

std::vector<std::shared_ptr<Condition>> Graph::conditions() const {
  const std::lock_guard lock(mutex_);
  return conditions_;
}

GraphNode* Graph::own(CUgraphNode handle) const {
  const auto node = HandleTable<GraphNode>::get().find(handle);
  return node != nullptr && node->graph == this ? node.get() : nullptr;
}

CUresult Graph::add(NodeWork work, const CUgraphNode* dependencies, std::size_t count, CUgraphNode& node) {
  if (count != 0 && dependencies == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto added = std::make_shared<GraphNode>();
  added->graph = this;
  added->work = std::make_shared<const NodeWork>(std::move(work));
  for (std::size_t i = 0; i < count; ++i) {
    GraphNode* const before = own(dependencies[i]);
    auto& known = added->dependencies;
    if (before == nullptr || std::find(known.begin(), known.end(), before) != known.end()) return CUDA_ERROR_INVALID_VALUE;
    known.push_back(before);
  }
  const std::lock_guard lock(mutex_);
  node = static_cast<CUgraphNode>(HandleTable<GraphNode>::get().add(added));
  nodes_.push_back(std::move(added));
  return CUDA_SUCCESS;
}

CUresult Graph::add_dependencies(const CUgraphNode* from, const CUgraphNode* to, std::size_t count) {
  if (count != 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < count; ++i) {
    GraphNode* const before = own(from[i]);
    GraphNode* const after = own(to[i]);
    if (before == nullptr || after == nullptr || before == after) return CUDA_ERROR_INVALID_VALUE;
    auto& known = after->dependencies;
    if (std::find(known.begin(), known.end(), before) != known.end()) return CUDA_ERROR_INVALID_VALUE;
    known.push_back(before);
  }
  return CUDA_SUCCESS;
}

void Graph::set_work(GraphNode& node, NodeWork work) {
  auto replacement = std::make_shared<const NodeWork>(std::move(work));
  const std::lock_guard lock(mutex_);
  node.work = std::move(replacement);
}

CUresult Graph::remove(GraphNode& node) {
  std::shared_ptr<GraphNode> removed;  // outlives the lock
  const std::lock_guard lock(mutex_);
  for (const auto& other : nodes_) {
    auto& known = other->dependencies;
    known.erase(std::remove(known.begin(), known.end(), &node), known.end());
  }
  const auto found = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& other) { return other.get() == &node; });
  if (found == nodes_.end()) return CUDA_ERROR_INVALID_VALUE;
  removed = *found;
  forget_bodies(*removed);
  nodes_.erase(found);
  HandleTable<GraphNode>::get().remove(&node);
  return CUDA_SUCCESS;
}

bool Graph::in_order(std::vector<Step>& steps) const {
  const std::lock_guard lock(mutex_);
  std::unordered_map<const GraphNode*, std::size_t> missing;
  std::unordered_map<const GraphNode*, std::vector<const GraphNode*>> dependents;
  std::vector<const GraphNode*> ready;  // a queue: `next` is its front
  for (const auto& node : nodes_) {
    missing[node.get()] = node->dependencies.size();
    for (const GraphNode* before : node->dependencies) dependents[before].push_back(node.get());
    if (node->dependencies.empty()) ready.push_back(node.get());
  }
  for (std::size_t next = 0; next < ready.size(); ++next) {
    const GraphNode* const node = ready[next];
    steps.push_back({node, node->work, true});
    if (const auto* conditional = std::get_if<Conditional>(node->work.get())) {
      std::vector<std::vector<Step>> bodies(conditional->bodies.size());
      for (std::size_t i = 0; i < bodies.size(); ++i) {
        if (!conditional->bodies[i]->in_order(bodies[i])) return false;
      }
      steps.back().bodies = std::move(bodies);
    }
    for (const GraphNode* dependent : dependents[node]) {
      if (--missing[dependent] == 0) ready.push_back(dependent);
    }
  }
  return steps.size() == nodes_.size();
}

std::vector<CUgraphNode> Graph::nodes() const {
  const std::lock_guard lock(mutex_);
  std::vector<CUgraphNode> handles;
  for (const auto& node : nodes_) handles.push_back(reinterpret_cast<CUgraphNode>(node.get()));
  return handles;
}

std::vector<CUgraphNode> Graph::roots() const {
  const std::lock_guard lock(mutex_);
  std::vector<CUgraphNode> handles;
  for (const auto& node : nodes_) {
    if (node->dependencies.empty()) handles.push_back(reinterpret_cast<CUgraphNode>(node.get()));
  }
  return handles;
}

}  // namespace mpsshim::cpudriver
