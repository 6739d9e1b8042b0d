// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Graph Management", conditional nodes.
#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/graphs/graph.hpp"

#undef cuGraphAddNode

using namespace mpsshim::cpudriver;

namespace {

bool has_such_bodies(const CUDA_CONDITIONAL_NODE_PARAMS& params) {
  switch (static_cast<int>(params.type)) {
    case CU_GRAPH_COND_TYPE_IF: return params.size == 1 || params.size == 2;
    case CU_GRAPH_COND_TYPE_WHILE: return params.size == 1;
    case 2: return params.size >= 1;  // CU_GRAPH_COND_TYPE_SWITCH, since 12.8
    default: return false;
  }
}

CUresult add_condition(CUgraphNode* node, CUgraph handle, const CUgraphNode* dependencies, size_t count, CUDA_CONDITIONAL_NODE_PARAMS& params) {
  const auto graph = HandleTable<Graph>::get().find(handle);
  if (graph == nullptr || !has_such_bodies(params)) return CUDA_ERROR_INVALID_VALUE;
  Conditional work;
  work.condition = graph->find_condition(params.handle);
  if (work.condition == nullptr) return CUDA_ERROR_INVALID_VALUE;
  work.type = static_cast<int>(params.type);
  work.handles = std::make_shared<std::vector<CUgraph>>();
  for (unsigned i = 0; i < params.size; ++i) {
    auto body = std::make_shared<Graph>();
    body->set_outer(graph.get());
    work.bodies.push_back(body);
    work.handles->push_back(reinterpret_cast<CUgraph>(body.get()));
  }
  const Conditional added = work;
  const CUresult result = graph->add(std::move(work), dependencies, count, *node);
  if (result != CUDA_SUCCESS) return result;
  for (const auto& body : added.bodies) HandleTable<Graph>::get().add(body);
  params.phGraph_out = added.handles->data();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuGraphConditionalHandleCreate(CUgraphConditionalHandle* pHandle_out, CUgraph hGraph, CUcontext, unsigned int defaultLaunchValue,
                                                unsigned int flags) {
  return entry(Needs::context, [&] {
    const auto graph = HandleTable<Graph>::get().find(hGraph);
    if (graph == nullptr || pHandle_out == nullptr || (flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}) != 0) return CUDA_ERROR_INVALID_VALUE;
    *pHandle_out = graph->make_condition(defaultLaunchValue, (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0);
    return CUDA_SUCCESS;
  });
}

// Nodes of other kinds have functions of their own, which the executor calls.
extern "C" CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                              const CUgraphEdgeData* dependencyData, size_t numDependencies, CUgraphNodeParams* nodeParams) {
  return entry(Needs::context, [&]() -> CUresult {
    if (phGraphNode == nullptr || nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (nodeParams->type != CU_GRAPH_NODE_TYPE_CONDITIONAL || dependencyData != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    return add_condition(phGraphNode, hGraph, dependencies, numDependencies, nodeParams->conditional);
  });
}
