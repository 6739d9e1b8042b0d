// SPDX-License-Identifier: Apache-2.0
// Adding memory nodes to graphs: which block an allocation gets, and what of a graph's allocations a launch leaves behind. With the graphs' mutex
// held, but for with_new_block.
#pragma once

#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/graphs/graph.hpp"
#include "interposer/forward/graphs/graph_memory.hpp"

namespace mpsshim::interposer::forward {

// Errors of add_allocation where the graph has no block to use again and no spare one was given.
inline constexpr CUresult kNeedsBlock = CUDA_ERROR_NOT_READY;

// An allocation of `bytesize` behind `before`. A parameter that is wrong is found before a block is asked for.
[[nodiscard]] CUresult add_allocation(Graph& graph, const std::vector<Edge>& before, const CUDA_MEM_ALLOC_NODE_PARAMS& params, const BlockRef& spare,
                                      Node*& node, std::uint64_t& address);
// CUDA_ERROR_INVALID_VALUE: no block begins there, or it is freed in this graph already.
[[nodiscard]] CUresult add_free(Graph& graph, const std::vector<Edge>& before, std::uint64_t address, Node*& node);

// attempt(const BlockRef& spare), and again with a block if that is what it lacks: memory is asked for without the graphs' mutex.
template <typename Attempt>
[[nodiscard]] CUresult with_new_block(std::uint64_t bytes, Attempt&& attempt) {
  const CUresult first = attempt(BlockRef{});
  if (first != kNeedsBlock) return first;
  BlockRef block;
  const CUresult error = GraphMemory::instance().allocate(bytes, block);
  return error == CUDA_SUCCESS ? attempt(block) : error;
}

// Nodes in an order that keeps all dependencies.
[[nodiscard]] GraphMemoryUse memory_use(const std::vector<FlatNode>& nodes);

}  // namespace mpsshim::interposer::forward
