// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Graph Management", making graphs. Node kinds: kernel, batch of memory operations, copy, fill,
// host function, event record, empty.
#include "broker/cpudriver/graphs/graph.hpp"

#include <algorithm>

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/api/graph_work.hpp"

using namespace mpsshim::cpudriver;

namespace {

CUresult add_node(CUgraphNode* node, CUgraph graph_handle, const CUgraphNode* dependencies, size_t count,
                  const WorkOrError& made) {
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto graph = HandleTable<Graph>::get().find(graph_handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return made.error != CUDA_SUCCESS ? made.error : graph->add(made.work, dependencies, count, *node);
}

CUresult set_node(CUgraphNode handle, const WorkOrError& made) {
  const auto node = HandleTable<GraphNode>::get().find(handle);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (made.error != CUDA_SUCCESS) return made.error;
  if (node->work->index() != made.work.index()) return CUDA_ERROR_INVALID_VALUE;
  node->graph->set_work(*node, made.work);
  return CUDA_SUCCESS;
}

// Answers a list the way CUDA does: without room for it, how long it is; with room, that many, the rest null.
CUresult answer_list(const std::vector<CUgraphNode>& found, CUgraphNode* nodes, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes != nullptr) {
    for (size_t i = 0; i < *count; ++i) nodes[i] = i < found.size() ? found[i] : nullptr;
    *count = std::min(*count, found.size());
  } else {
    *count = found.size();
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  return entry(Needs::context, [&] {
    if (phGraph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *phGraph = static_cast<CUgraph>(HandleTable<Graph>::get().add(std::make_shared<Graph>()));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph) {
  return entry(Needs::context, [&] {
    const auto graph = HandleTable<Graph>::get().find(hGraph);
    if (graph == nullptr || graph->is_body()) return CUDA_ERROR_INVALID_VALUE;
    HandleTable<Graph>::get().remove(hGraph);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                      size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return entry(Needs::context, [&] {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, kernel_work(nodeParams));
  });
}

CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return entry(Needs::context, [&] { return set_node(hNode, kernel_work(nodeParams)); });
}

CUresult CUDAAPI cuGraphAddBatchMemOpNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                          size_t numDependencies, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return entry(Needs::context, [&] {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, memory_operations_work(nodeParams));
  });
}

CUresult CUDAAPI cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return entry(Needs::context, [&] { return set_node(hNode, memory_operations_work(nodeParams)); });
}

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                      size_t numDependencies, const CUDA_MEMCPY3D* copyParams, CUcontext) {
  return entry(Needs::context, [&] {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, copy_work(copyParams));
  });
}

CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
  return entry(Needs::context, [&] { return set_node(hNode, copy_work(nodeParams)); });
}

CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                      size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext) {
  return entry(Needs::context, [&] {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, fill_work(memsetParams));
  });
}

CUresult CUDAAPI cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  return entry(Needs::context, [&] { return set_node(hNode, fill_work(nodeParams)); });
}

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                    size_t numDependencies, const CUDA_HOST_NODE_PARAMS* nodeParams) {
  return entry(Needs::context, [&] {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, host_work(nodeParams));
  });
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                     size_t numDependencies) {
  return entry(Needs::context, [&] {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, {CUDA_SUCCESS, NoWork{}});
  });
}

CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                          size_t numDependencies, CUevent event) {
  return entry(Needs::context, [&] {
    const auto found = HandleTable<Event>::get().find(event);
    const WorkOrError made = found != nullptr ? WorkOrError{CUDA_SUCCESS, EventMark{found}} : WorkOrError{CUDA_ERROR_INVALID_HANDLE, {}};
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, made);
  });
}

CUresult CUDAAPI cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue* value) {
  return entry(Needs::context, [&]() -> CUresult {
    const auto node = HandleTable<GraphNode>::get().find(hNode);
    const auto* kernel = node != nullptr ? std::get_if<KernelLaunch>(node->work.get()) : nullptr;
    if (kernel == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    switch (static_cast<int>(attr)) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: {
        KernelLaunch changed = *kernel;
        changed.set_cooperative(value->cooperative != 0);
        node->graph->set_work(*node, std::move(changed));
        return CUDA_SUCCESS;
      }
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        return value->clusterDim.x <= 1 && value->clusterDim.y <= 1 && value->clusterDim.z <= 1 ? CUDA_SUCCESS
                                                                                                : CUDA_ERROR_INVALID_CLUSTER_SIZE;
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      case 11:  // preferred cluster dimension: a preference
      case 14:  // preferred shared memory carve-out
        return CUDA_SUCCESS;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode hNode) {
  return entry(Needs::context, [&] {
    const auto node = HandleTable<GraphNode>::get().find(hNode);
    return node == nullptr ? CUDA_ERROR_INVALID_VALUE : node->graph->remove(*node);
  });
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  return entry(Needs::context, [&] {
    const auto node = HandleTable<GraphNode>::get().find(hNode);
    if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *type = type_of(*node->work);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  return entry(Needs::context, [&] {
    const auto graph = HandleTable<Graph>::get().find(hGraph);
    return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : answer_list(graph->nodes(), nodes, numNodes);
  });
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes, size_t* numRootNodes) {
  return entry(Needs::context, [&] {
    const auto graph = HandleTable<Graph>::get().find(hGraph);
    return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : answer_list(graph->roots(), rootNodes, numRootNodes);
  });
}

#undef cuGraphAddDependencies

// The signature without edge data, which programs built before CUDA 13 use.
extern "C" CUresult CUDAAPI cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                                   size_t numDependencies) {
  return entry(Needs::context, [&] {
    const auto graph = HandleTable<Graph>::get().find(hGraph);
    return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : graph->add_dependencies(from, to, numDependencies);
  });
}

extern "C" CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                                      const CUgraphEdgeData* edgeData, size_t numDependencies) {
  const auto is_plain = [](const CUgraphEdgeData& edge) {
    return edge.from_port == 0 && edge.to_port == 0 && edge.type == 0;
  };
  if (edgeData != nullptr && !std::all_of(edgeData, edgeData + numDependencies, is_plain)) return CUDA_ERROR_NOT_SUPPORTED;
  return cuGraphAddDependencies(hGraph, from, to, numDependencies);
}
