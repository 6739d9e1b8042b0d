// SPDX-License-Identifier: Apache-2.0
// How the functions of graphs/*_api.cpp begin: the graphs' mutex, then the object behind the handle. None of them needs a context.
#pragma once

#include <mutex>

#include "interposer/forward/graphs/graph.hpp"

namespace mpsshim::interposer::forward {

// CUDA_ERROR_INVALID_VALUE where the handle is none.
template <typename F>
CUresult with_graph(CUgraph handle, F&& f) {
  const std::lock_guard lock(Graphs::instance().mutex());
  Graph* graph = Graphs::instance().resolve(handle);
  return graph != nullptr ? f(*graph) : CUDA_ERROR_INVALID_VALUE;
}

template <typename F>
CUresult with_node(CUgraphNode handle, F&& f) {
  const std::lock_guard lock(Graphs::instance().mutex());
  Node* node = Graphs::instance().resolve(handle);
  return node != nullptr ? f(*node) : CUDA_ERROR_INVALID_VALUE;
}

[[nodiscard]] inline bool has_ports(const CUgraphEdgeData& edge) { return edge.from_port != 0 || edge.to_port != 0 || edge.type != 0; }

// Edges that are not whole dependencies are kept and answered, between kernels, and issued as whole ones: what comes second may begin later
// than it could.
[[nodiscard]] inline bool is_valid_edge(const Node& from, const Node& to, const CUgraphEdgeData& edge) {
  constexpr unsigned char kLastPort = 2;  // CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER
  if (!has_ports(edge)) return true;
  const bool between_kernels = std::holds_alternative<KernelWork>(*from.work) && std::holds_alternative<KernelWork>(*to.work);
  return edge.to_port == 0 && edge.from_port <= kLastPort && edge.type <= 1 && (edge.type == 0 || between_kernels) &&
         (edge.from_port == 0 || std::holds_alternative<KernelWork>(*from.work));
}

}  // namespace mpsshim::interposer::forward
