// SPDX-License-Identifier: Apache-2.0
// Memory nodes of graphs (CUDA Driver API manual, "Graph Management").
#include "gen/api_declarations.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/graphs/graph_access.hpp"
#include "interposer/forward/graphs/graph_memory.hpp"
#include "interposer/forward/graphs/memory_nodes.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

CUresult read(Graph& graph, const CUgraphNode* nodes, size_t count, std::vector<Edge>& before) {
  if (count != 0 && nodes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    Node* node = Graphs::instance().resolve(nodes[i]);
    if (node == nullptr || node->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    before.push_back({node, {}});
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
  if (phGraphNode == nullptr || nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  std::uint64_t address = 0;
  const CUresult error = with_new_block(nodeParams->bytesize, [&](const BlockRef& spare) {
    return with_graph(hGraph, [&](Graph& graph) {
      std::vector<Edge> before;
      if (const CUresult wrong = read(graph, dependencies, numDependencies, before); wrong != CUDA_SUCCESS) return wrong;
      Node* node = nullptr;
      const CUresult added = add_allocation(graph, before, *nodeParams, spare, node, address);
      if (added == CUDA_SUCCESS) *phGraphNode = to_handle<CUgraphNode>(node->id);
      return added;
    });
  });
  if (error == CUDA_SUCCESS) nodeParams->dptr = address;
  return error;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies, CUdeviceptr dptr) {
  if (phGraphNode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  return with_graph(hGraph, [&](Graph& graph) {
    std::vector<Edge> before;
    if (const CUresult wrong = read(graph, dependencies, numDependencies, before); wrong != CUDA_SUCCESS) return wrong;
    Node* node = nullptr;
    const CUresult added = add_free(graph, before, dptr, node);
    if (added == CUDA_SUCCESS) *phGraphNode = to_handle<CUgraphNode>(node->id);
    return added;
  });
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS* params_out) {
  if (params_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_node(hNode, [&](const Node& node) {
    const auto* allocation = std::get_if<AllocationWork>(node.work.get());
    if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *params_out = allocation->params;
    params_out->accessDescs = allocation->access.empty() ? nullptr : allocation->access.data();
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) {
  if (dptr_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_node(hNode, [&](const Node& node) {
    const auto* free = std::get_if<FreeWork>(node.work.get());
    if (free == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *dptr_out = free->block->range().address;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of(device));
  return GraphMemory::instance().get_attribute(attr, *static_cast<cuuint64_t*>(value));
}
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of(device));
  return GraphMemory::instance().set_attribute(attr, *static_cast<const cuuint64_t*>(value));
}
CUresult cuDeviceGraphMemTrim(CUdevice device) {
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of(device));
  GraphMemory::instance().reap();
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
