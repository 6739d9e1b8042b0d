// SPDX-License-Identifier: Apache-2.0
// Conditional nodes (CUDA Programming Guide, "Conditional Graph Nodes"). A node's bodies are graphs that it owns, filled like any graph and
// described with it. A handle's value is the driver's own, since kernels set it: the executor makes it (broker/executor/graphs/conditioned_graph.hpp)
// and keeps a driver's graph for it, which the executable graph is built in.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/graphs/graph.hpp"

namespace mpsshim::interposer::forward {

// The handles that were made for a graph. The graph holds it, and so does what is instantiated of it: the last one has the executor told.
struct ConditionSet {
  ConditionSet() = default;
  ~ConditionSet();
  ConditionSet(const ConditionSet&) = delete;

  proto::GraphId graph;
  std::map<CUgraphConditionalHandle, bool> is_used;  // by a node
  std::vector<RecipeBook::Key> recipes;
};

// As many as nodes of the type may have.
[[nodiscard]] bool has_such_bodies(const CUDA_CONDITIONAL_NODE_PARAMS& params);

// CUDA_ERROR_NOT_SUPPORTED: a body holds what the GPU does not do by itself. Kernels, copies, fills, empty and conditional nodes are permitted.
[[nodiscard]] CUresult check_bodies(const ConditionWork& condition);

// Work of this process stands between what sets a value and the node that reads it: two launches of the driver, with no value in common.
[[nodiscard]] CUresult refuse_divided_conditions();

// As proto/graph_nodes.hpp has it.
[[nodiscard]] std::vector<std::byte> payload_of(const ConditionWork& condition);

// Tells the executor of sets that are gone. Not with the graphs' mutex held.
void end_conditions();

}  // namespace mpsshim::interposer::forward
