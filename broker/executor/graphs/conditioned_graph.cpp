// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/graphs/conditioned_graph.hpp"

#include <algorithm>
#include <utility>

#include "broker/executor/graphs/session_graph.hpp"

namespace mpsshim::broker {

ConditionedGraph::~ConditionedGraph() {
  if (graph_ != nullptr) driver_->cuGraphDestroy(graph_);
}

CUresult ConditionedGraph::create(CUcontext context, std::uint32_t default_value, std::uint32_t flags, CUgraphConditionalHandle& handle) {
  if (graph_ == nullptr) {
    if (const CUresult result = driver_->cuGraphCreate(&graph_, 0); result != CUDA_SUCCESS) return result;
  }
  return driver_->cuGraphConditionalHandleCreate(&handle, graph_, context, default_value, flags);
}

bool ConditionedGraph::take(const SessionGraph& graph) {
  if (taken_by_ != nullptr) return false;
  taken_by_ = &graph;
  return true;
}

void ConditionedGraph::give_back(const SessionGraph& graph) {
  if (taken_by_ == &graph) taken_by_ = nullptr;
}

bool ConditionedGraph::begin_build(SessionGraph& holder, std::span<const std::byte> description, bool may_keep, CUgraph& graph, CUresult& result) {
  if (SessionGraph* const before = holder_.load(std::memory_order_relaxed)) before->destroy_exec();
  holder_.store(&holder, std::memory_order_release);
  graph = graph_;
  result = CUDA_SUCCESS;
  if (may_keep && !built_.empty() && std::ranges::equal(description_, description)) return true;
  description_.clear();
  // Whether its handles may serve again in another node is the driver's to say.
  while (!built_.empty() && result == CUDA_SUCCESS) {
    result = driver_->cuGraphDestroyNode(built_.back());
    if (result == CUDA_SUCCESS) built_.pop_back();
  }
  return false;
}

void ConditionedGraph::forget(const SessionGraph& graph) {
  if (holder_.load(std::memory_order_relaxed) == &graph) holder_.store(nullptr, std::memory_order_release);
}

SessionConditions::GraphRef SessionConditions::find_or_add(const Driver& driver, proto::GraphId id) {
  GraphRef& graph = graphs_[id.value];
  if (graph == nullptr) graph = std::make_shared<ConditionedGraph>(driver);
  return graph;
}

SessionConditions::GraphRef SessionConditions::find(std::uint64_t handle) const {
  const auto found = graph_of_.find(handle);
  if (found == graph_of_.end()) return nullptr;
  const auto graph = graphs_.find(found->second.value);
  return graph != graphs_.end() ? graph->second : nullptr;
}

bool SessionConditions::add(proto::GraphId id, std::uint64_t handle) {
  if (!graphs_.contains(id.value)) return false;
  graph_of_[handle] = id;
  return true;
}

SessionConditions::GraphRef SessionConditions::take(proto::GraphId id) {
  const auto found = graphs_.find(id.value);
  if (found == graphs_.end()) return nullptr;
  GraphRef graph = std::move(found->second);
  graphs_.erase(found);
  std::erase_if(graph_of_, [&](const auto& entry) { return entry.second == id; });
  return graph;
}

void SessionConditions::release_all() {
  graph_of_.clear();
  graphs_.clear();
}

}  // namespace mpsshim::broker
