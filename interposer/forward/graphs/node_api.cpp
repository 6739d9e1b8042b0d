// SPDX-License-Identifier: Apache-2.0
// Nodes of each kind: added to a graph, asked for what they do, changed (CUDA Driver API manual, "Graph Management").
#include <utility>

#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/conditional_nodes.hpp"
#include "interposer/forward/graphs/graph.hpp"
#include "interposer/forward/graphs/graph_access.hpp"
#include "interposer/forward/graphs/node_params.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// What a node is added behind, as the application names it.
struct Dependencies {
  const CUgraphNode* nodes;
  const CUgraphEdgeData* edges;
  size_t count;
};

CUresult read(const Graph& graph, const Dependencies& given, const NodeWork& work, std::vector<Edge>& before) {
  if (given.count != 0 && given.nodes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Node added;  // stands for the node to be, so that edges to it can be checked
  added.work = std::make_shared<const NodeWork>(work);
  for (size_t i = 0; i < given.count; ++i) {
    Node* node = Graphs::instance().resolve(given.nodes[i]);
    const CUgraphEdgeData data = given.edges != nullptr ? given.edges[i] : CUgraphEdgeData{};
    if (node == nullptr || node->graph != &graph || !is_valid_edge(*node, added, data)) return CUDA_ERROR_INVALID_VALUE;
    before.push_back({node, data});
  }
  return CUDA_SUCCESS;
}

// `make(WorkRef&)` checks the parameters; nothing is looked at unless the graph is one.
template <typename Make>
CUresult add(CUgraphNode* result, CUgraph hGraph, const Dependencies& dependencies, Make&& make, const CUgraph* child = nullptr) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = session().ensure_attached(); error != CUDA_SUCCESS) return error;
  return with_graph(hGraph, [&](Graph& graph) {
    WorkRef work;
    if (const CUresult error = make(work); error != CUDA_SUCCESS) return error;
    std::vector<Edge> before;
    if (const CUresult error = read(graph, dependencies, *work, before); error != CUDA_SUCCESS) return error;
    Node* node = nullptr;
    CUresult error = CUDA_SUCCESS;
    if (std::holds_alternative<ChildWork>(*work)) {
      const Graph* inner = child != nullptr ? Graphs::instance().resolve(*child) : nullptr;
      if (inner == nullptr || inner == &graph) return CUDA_ERROR_INVALID_VALUE;
      error = Graphs::instance().add_child(graph, *inner, before, node);
    } else {
      error = Graphs::instance().add(graph, std::move(work), before, node);
    }
    if (error == CUDA_SUCCESS) *result = to_handle<CUgraphNode>(node->id);
    return error;
  });
}

// The node's work, if it is of that kind.
template <typename Work, typename F>
CUresult get(CUgraphNode hNode, F&& f) {
  return with_node(hNode, [&](const Node& node) {
    const auto* work = std::get_if<Work>(node.work.get());
    if (work == nullptr) return CUDA_ERROR_INVALID_VALUE;
    f(*work);
    return CUDA_SUCCESS;
  });
}

template <typename Work, typename Make>
CUresult set(CUgraphNode hNode, Make&& make) {
  return with_node(hNode, [&](Node& node) {
    if (!std::holds_alternative<Work>(*node.work)) return CUDA_ERROR_INVALID_VALUE;
    WorkRef work;
    const CUresult error = make(work);
    if (error == CUDA_SUCCESS) node.work = std::move(work);
    return error;
  });
}

// Attributes of a node outlive new parameters.
CUresult set_kernel(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v3& params) {
  return with_node(hNode, [&](Node& node) {
    const auto* kernel = std::get_if<KernelWork>(node.work.get());
    if (kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
    WorkRef made;
    if (const CUresult error = make_kernel_work(params, made); error != CUDA_SUCCESS) return error;
    made = with_attributes_of(std::get<KernelWork>(*made), *kernel);
    if (made != nullptr) node.work = std::move(made);
    return CUDA_SUCCESS;
  });
}

CUresult add_condition(CUgraphNode* result, CUgraph hGraph, const Dependencies& dependencies, CUDA_CONDITIONAL_NODE_PARAMS& params) {
  if (result == nullptr || !has_such_bodies(params)) return CUDA_ERROR_INVALID_VALUE;
  return with_graph(hGraph, [&](Graph& graph) {
    ConditionSet* conditions = outermost(graph).conditions.get();
    if (conditions == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto condition = conditions->is_used.find(params.handle);
    if (condition == conditions->is_used.end() || condition->second) return CUDA_ERROR_INVALID_VALUE;  // each is of one node
    const ConditionWork work{params.handle, static_cast<std::uint32_t>(params.type), nullptr};
    std::vector<Edge> before;
    if (const CUresult error = read(graph, dependencies, work, before); error != CUDA_SUCCESS) return error;
    Node* node = nullptr;
    if (const CUresult error = Graphs::instance().add_condition(graph, work, params.size, before, node); error != CUDA_SUCCESS) return error;
    condition->second = true;
    params.phGraph_out = node->body_handles.data();
    *result = to_handle<CUgraphNode>(node->id);
    return CUDA_SUCCESS;
  });
}

CUresult make_empty(WorkRef& work) {
  work = std::make_shared<const NodeWork>(EmptyWork{});
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies) {
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, make_empty);
}

CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies},
             [&](WorkRef& work) { return make_kernel_work(kernel_params(*nodeParams), work); });
}
CUresult cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies,
                                 const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies},
             [&](WorkRef& work) { return make_kernel_work(kernel_params(*nodeParams), work); });
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  if (copyParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, [&](WorkRef& work) { return make_copy_work(*copyParams, ctx, work); });
}

CUresult cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
  if (memsetParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, [&](WorkRef& work) { return make_fill_work(*memsetParams, ctx, work); });
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies,
                                  CUgraph childGraph) {
  const auto make = [](WorkRef& work) {
    work = std::make_shared<const NodeWork>(ChildWork{});
    return CUDA_SUCCESS;
  };
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, make, &childGraph);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies, CUevent event) {
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, [&](WorkRef& work) { return make_event_work(event, false, work); });
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies, CUevent event) {
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, [&](WorkRef& work) { return make_event_work(event, true, work); });
}

CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies}, [&](WorkRef& work) { return make_host_work(*nodeParams, work); });
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return add(phGraphNode, hGraph, {dependencies, nullptr, numDependencies},
             [&](WorkRef& work) { return make_memory_operations_work(*nodeParams, work); });
}

CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, size_t numDependencies,
                        CUgraphNodeParams* nodeParams) {
  return api::cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}
CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies, const CUgraphEdgeData* dependencyData,
                           size_t numDependencies, CUgraphNodeParams* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    return api::cuGraphAddMemFreeNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams->free.dptr);
  }
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    CUDA_MEM_ALLOC_NODE_PARAMS_v2& given = nodeParams->alloc;
    CUDA_MEM_ALLOC_NODE_PARAMS params{given.poolProps, given.accessDescs, given.accessDescCount, given.bytesize, 0};
    const CUresult error = api::cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies, &params);
    if (error == CUDA_SUCCESS) given.dptr = params.dptr;
    return error;
  }
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    return add_condition(phGraphNode, hGraph, {dependencies, dependencyData, numDependencies}, nodeParams->conditional);
  }
  CUgraph child = nullptr;
  const CUresult error = add(
      phGraphNode, hGraph, {dependencies, dependencyData, numDependencies}, [&](WorkRef& work) { return make_work(*nodeParams, work, child); },
      &child);
  // A child node's parameters answer with the graph that is the node's.
  if (error == CUDA_SUCCESS && child != nullptr) return api::cuGraphChildGraphNodeGetGraph(*phGraphNode, &nodeParams->graph.graph);
  return error;
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_KERNEL) return set_kernel(hNode, nodeParams->kernel);
  return with_node(hNode, [&](Node& node) {
    CUgraph child = nullptr;
    WorkRef work;
    if (nodeParams->type != type_of(*node.work) || nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_INVALID_VALUE;
    const CUresult error = make_work(*nodeParams, work, child);
    if (error == CUDA_SUCCESS) node.work = std::move(work);
    return error;
  });
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get<KernelWork>(hNode, [&](const KernelWork& kernel) { answer(kernel, *nodeParams); });
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get<KernelWork>(hNode, [&](const KernelWork& kernel) {
    answer(kernel, *nodeParams);
    nodeParams->kern = kernel.kernel;
    nodeParams->ctx = kernel.context;
  });
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  return nodeParams != nullptr ? set_kernel(hNode, kernel_params(*nodeParams)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return nodeParams != nullptr ? set_kernel(hNode, kernel_params(*nodeParams)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, CUkernelNodeAttrValue* value_out) {
  if (value_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get<KernelWork>(hNode, [&](const KernelWork& kernel) { *value_out = attribute_of(kernel, attr); });
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_node(hNode, [&](Node& node) {
    const auto* kernel = std::get_if<KernelWork>(node.work.get());
    if (kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUlaunchAttribute attribute{};
    attribute.id = attr;
    attribute.value = *value;
    WorkRef changed = with_attribute(*kernel, attribute);
    if (changed == nullptr) return CUDA_ERROR_INVALID_VALUE;
    node.work = std::move(changed);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
  return with_node(dst, [&](Node& to) {
    const Node* from = Graphs::instance().resolve(src);
    const auto* kernel = std::get_if<KernelWork>(to.work.get());
    const auto* model = from != nullptr ? std::get_if<KernelWork>(from->work.get()) : nullptr;
    if (kernel == nullptr || model == nullptr) return CUDA_ERROR_INVALID_VALUE;
    WorkRef changed = with_attributes_of(*kernel, *model);
    if (changed == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    to.work = std::move(changed);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get<CopyWork>(hNode, [&](const CopyWork& copy) { *nodeParams = copy.params; });
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set<CopyWork>(hNode, [&](WorkRef& work) { return make_copy_work(*nodeParams, nullptr, work); });
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get<FillWork>(hNode, [&](const FillWork& fill) { *nodeParams = fill.params; });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set<FillWork>(hNode, [&](WorkRef& work) { return make_fill_work(*nodeParams, nullptr, work); });
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get<HostWork>(hNode, [&](const HostWork& host) { *nodeParams = host.params; });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set<HostWork>(hNode, [&](WorkRef& work) { return make_host_work(*nodeParams, work); });
}

// The operations are the node's: they are there until it is changed or ends.
CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode, CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams_out) {
  if (nodeParams_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get<MemoryOperationsWork>(hNode, [&](const MemoryOperationsWork& work) {
    *nodeParams_out = {work.context, static_cast<unsigned int>(work.operations.size()), const_cast<CUstreamBatchMemOpParams*>(work.operations.data()),
                       0};
  });
}
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set<MemoryOperationsWork>(hNode, [&](WorkRef& work) { return make_memory_operations_work(*nodeParams, work); });
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph* phGraph) {
  if (phGraph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_node(hNode, [&](const Node& node) {
    if (node.child == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *phGraph = to_handle<CUgraph>(node.child->id);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  if (event_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get<EventRecordWork>(hNode, [&](const EventRecordWork& work) { *event_out = work.event; });
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return set<EventRecordWork>(hNode, [&](WorkRef& work) { return make_event_work(event, false, work); });
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  if (event_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return get<EventWaitWork>(hNode, [&](const EventWaitWork& work) { *event_out = work.event; });
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return set<EventWaitWork>(hNode, [&](WorkRef& work) { return make_event_work(event, true, work); });
}

}  // namespace mpsshim::interposer::api
