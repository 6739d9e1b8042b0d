// SPDX-License-Identifier: Apache-2.0
// On which multiprocessors a session's executable graph runs, and how it comes to others.
#include <utility>
#include <vector>

#include "broker/executor/graphs/session_graph.hpp"

namespace mpsshim::broker {

void SessionGraph::note_place(const GreenContextRef& share) {
  if (read_.empty() && nodes_.empty()) return place_.store(share.get(), std::memory_order_relaxed);
  if (place_.load(std::memory_order_relaxed) != share.get()) is_mixed_.store(true, std::memory_order_relaxed);
}

// A graph with conditional nodes can be in the driver's graph alone that their handles were made in: it stays where it was made.
bool SessionGraph::is_outside(const GreenContextRef& share) const {
  if (!is_ready() || !follows_share_ || conditioned_ != nullptr || keeps_place_.load(std::memory_order_relaxed)) return false;
  return is_mixed_.load(std::memory_order_relaxed) || place_.load(std::memory_order_relaxed) != share.get();
}

// A node that would have to grow, which the client's had not to, may get wrong parameters of the driver (base/empty_kernel.hpp).
CUresult SessionGraph::make_anew() {
  const auto exchange = [this] {
    for (GraphNode& node : nodes_) {
      if (node.widest) std::swap(std::get<KernelNode>(node.work), *node.widest);
    }
  };
  std::uint32_t failed_node = 0;
  exchange();
  CUresult result = build(failed_node);
  if (result == CUDA_SUCCESS) result = instantiate(flags_);
  exchange();
  for (const GraphNode& node : nodes_) {
    if (node.widest && result == CUDA_SUCCESS) result = set_kernel(node, std::get<KernelNode>(node.work));
  }
  return result;
}

// The one that there is goes once the next is there.
CUresult SessionGraph::confine(const GreenContextRef& share) {
  if (has_left_.load(std::memory_order_relaxed) || unchanged_ != CUDA_SUCCESS) return CUDA_SUCCESS;
  if (!is_mixed_.load(std::memory_order_relaxed) && place_.load(std::memory_order_relaxed) == share.get()) return CUDA_SUCCESS;
  struct Before {
    CUgraphNode handle;
    GreenContextRef green;
  };
  std::vector<Before> before;
  const auto put = [](GraphNode& node, const GreenContextRef& green) {
    if (auto* const kernel = std::get_if<KernelNode>(&node.work)) kernel->green = green;
    if (node.widest) node.widest->green = green;
  };
  for (GraphNode& node : nodes_) {
    const auto* const kernel = std::get_if<KernelNode>(&node.work);
    before.push_back({node.handle, kernel != nullptr ? kernel->green : nullptr});
    if (kernel != nullptr && kernel->follows_share) put(node, share);
  }
  CUgraph graph = std::exchange(graph_, nullptr);
  CUgraphExec exec = std::exchange(exec_, nullptr);
  const CUresult result = make_anew();
  if (result == CUDA_SUCCESS) {
    place_.store(share.get(), std::memory_order_relaxed);
    is_mixed_.store(false, std::memory_order_relaxed);
  } else {
    keeps_place_.store(true, std::memory_order_relaxed);
    std::swap(graph, graph_);
    std::swap(exec, exec_);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].handle = before[i].handle;
      put(nodes_[i], before[i].green);
    }
  }
  if (exec != nullptr) parts_.driver->cuGraphExecDestroy(exec);
  if (graph != nullptr) parts_.driver->cuGraphDestroy(graph);
  return result;
}

}  // namespace mpsshim::broker
