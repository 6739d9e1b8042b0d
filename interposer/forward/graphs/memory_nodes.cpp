// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/memory_nodes.hpp"

#include <algorithm>
#include <unordered_set>

#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint64_t kSlackFactor = 2;  // a block more than so much larger than what is asked for is kept for something else
constexpr std::uint64_t kSlackBytes = 2u << 20;

CUresult check(const CUDA_MEM_ALLOC_NODE_PARAMS& params) {
  const CUmemPoolProps& pool = params.poolProps;
  if (params.bytesize == 0 || pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto is_own = [](const CUmemLocation& location) { return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id == session_device(); };
  if (pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (device_facts(pool.location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (!is_own(pool.location)) return CUDA_ERROR_NOT_SUPPORTED;
  if (params.accessDescCount != 0 && params.accessDescs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < params.accessDescCount; ++i) {
    const CUmemAccessDesc& access = params.accessDescs[i];
    if (!is_own(access.location) || access.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

std::unordered_set<const Node*> all_before(const std::vector<Edge>& before) {
  std::unordered_set<const Node*> found;
  std::vector<const Node*> next;
  for (const Edge& edge : before) next.push_back(edge.node);
  while (!next.empty()) {
    const Node* node = next.back();
    next.pop_back();
    if (!found.insert(node).second) continue;
    for (const Edge& edge : node->before) next.push_back(edge.node);
  }
  return found;
}

// The smallest block of the graph that is large enough and freed in front of `before`.
Graph::Block* find_freed(Graph& graph, const std::vector<Edge>& before, std::uint64_t bytes) {
  const auto fits = [&](const Graph::Block& block) {
    const std::uint64_t size = block.block->range().size_bytes;
    return block.freed != nullptr && size >= bytes && (size / kSlackFactor <= bytes || size - bytes <= kSlackBytes);
  };
  if (std::ranges::none_of(graph.blocks, fits)) return nullptr;
  const std::unordered_set<const Node*> earlier = all_before(before);
  Graph::Block* best = nullptr;
  for (Graph::Block& block : graph.blocks) {
    if (!fits(block) || !earlier.contains(block.freed)) continue;
    if (best == nullptr || block.block->range().size_bytes < best->block->range().size_bytes) best = &block;
  }
  return best;
}

}  // namespace

CUresult add_allocation(Graph& graph, const std::vector<Edge>& before, const CUDA_MEM_ALLOC_NODE_PARAMS& params, const BlockRef& spare, Node*& node,
                        std::uint64_t& address) {
  if (const CUresult error = check(params); error != CUDA_SUCCESS) return error;
  Graph::Block* again = find_freed(graph, before, params.bytesize);
  if (again == nullptr && spare == nullptr) return kNeedsBlock;
  AllocationWork work;
  work.params = params;
  work.access.assign(params.accessDescs, params.accessDescs + params.accessDescCount);
  work.block = again != nullptr ? again->block : spare;
  work.params.dptr = address = work.block->range().address;
  const BlockRef block = work.block;
  const CUresult error = Graphs::instance().add(graph, std::make_shared<const NodeWork>(std::move(work)), before, node);
  if (error != CUDA_SUCCESS) return error;
  if (again != nullptr) {
    again->freed = nullptr;
  } else {
    graph.blocks.push_back({block, nullptr});
  }
  graph.has_memory_nodes = true;
  return CUDA_SUCCESS;
}

CUresult add_free(Graph& graph, const std::vector<Edge>& before, std::uint64_t address, Node*& node) {
  const BlockRef block = GraphMemory::instance().find(address);
  if (block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto own = std::ranges::find(graph.blocks, block, &Graph::Block::block);
  if (own != graph.blocks.end() && own->freed != nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = Graphs::instance().add(graph, std::make_shared<const NodeWork>(FreeWork{block}), before, node);
  if (error != CUDA_SUCCESS) return error;
  // Another graph's: not to be used again here.
  if (own != graph.blocks.end()) own->freed = node;
  graph.has_memory_nodes = true;
  return CUDA_SUCCESS;
}

GraphMemoryUse memory_use(const std::vector<FlatNode>& nodes) {
  GraphMemoryUse use;
  const auto note = [](std::vector<BlockRef>& list, const BlockRef& block) {
    if (std::ranges::find(list, block) == list.end()) list.push_back(block);
  };
  for (const FlatNode& node : nodes) {
    if (const auto* allocation = std::get_if<AllocationWork>(node.work.get())) {
      note(use.blocks, allocation->block);
      note(use.leaves, allocation->block);
    } else if (const auto* free = std::get_if<FreeWork>(node.work.get())) {
      if (std::ranges::find(use.blocks, free->block) == use.blocks.end()) note(use.expects, free->block);
      note(use.blocks, free->block);
      std::erase(use.leaves, free->block);
    }
  }
  return use;
}

}  // namespace mpsshim::interposer::forward
