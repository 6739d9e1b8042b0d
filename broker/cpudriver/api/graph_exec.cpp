// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Graph Management", running graphs and changing what is instantiated.
#include "broker/cpudriver/graphs/graph_exec.hpp"

#include <algorithm>

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/api/graph_work.hpp"

using namespace mpsshim::cpudriver;

namespace {

template <class Body>
CUresult with_exec(CUgraphExec handle, Body&& body) {
  return entry(Needs::context, [&]() -> CUresult {
    const auto exec = HandleTable<GraphExec>::get().find(handle);
    return exec == nullptr ? CUDA_ERROR_INVALID_VALUE : body(*exec);
  });
}

CUresult set_work(GraphExec& exec, CUgraphNode node, WorkOrError made) {
  return made.error != CUDA_SUCCESS ? made.error : exec.set_work(node, std::move(made.work));
}

// Kernels, copies, fills, empty and conditional nodes.
bool has_possible_bodies(const Graph::Step& step) {
  const auto may_be_in_body = [](const Graph::Step& inner) {
    const NodeWork& work = *inner.work;
    const bool is_refused =
        std::holds_alternative<MemoryOperations>(work) || std::holds_alternative<HostCall>(work) || std::holds_alternative<EventMark>(work);
    return !is_refused && has_possible_bodies(inner);
  };
  return std::all_of(step.bodies.begin(), step.bodies.end(), [&](const auto& body) { return std::all_of(body.begin(), body.end(), may_be_in_body); });
}

CUresult instantiate(CUgraphExec* handle, CUgraph graph_handle, unsigned long long flags) {
  // Launched from the device, or freed by its launches: neither exists here.
  constexpr unsigned long long kMeaningless = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                              CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                              CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  const auto graph = HandleTable<Graph>::get().find(graph_handle);
  if (handle == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & ~kMeaningless) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  GraphExec::Steps steps;
  if (graph->is_body() || !graph->in_order(steps)) return CUDA_ERROR_INVALID_VALUE;
  if (!std::all_of(steps.begin(), steps.end(), has_possible_bodies)) return CUDA_ERROR_NOT_SUPPORTED;
  *handle = static_cast<CUgraphExec>(HandleTable<GraphExec>::get().add(std::make_shared<GraphExec>(std::move(steps), graph->conditions())));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph, unsigned long long flags) {
  return entry(Needs::context, [&] { return instantiate(phGraphExec, hGraph, flags); });
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  return entry(Needs::context, [&] {
    if (instantiateParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = instantiate(phGraphExec, hGraph, instantiateParams->flags);
    instantiateParams->hErrNode_out = nullptr;
    instantiateParams->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
  });
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec) {
  return entry(Needs::context, [&] {
    return HandleTable<GraphExec>::get().remove(hGraphExec) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return with_exec(hGraphExec, [&](GraphExec& exec) { return set_work(exec, hNode, kernel_work(nodeParams)); });
}

CUresult CUDAAPI cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                    const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  return with_exec(hGraphExec,
                   [&](GraphExec& exec) { return set_work(exec, hNode, memory_operations_work(nodeParams)); });
}

CUresult CUDAAPI cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_MEMCPY3D* copyParams, CUcontext) {
  return with_exec(hGraphExec, [&](GraphExec& exec) { return set_work(exec, hNode, copy_work(copyParams)); });
}

CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext) {
  return with_exec(hGraphExec, [&](GraphExec& exec) { return set_work(exec, hNode, fill_work(memsetParams)); });
}

CUresult CUDAAPI cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                              const CUDA_HOST_NODE_PARAMS* nodeParams) {
  return with_exec(hGraphExec, [&](GraphExec& exec) { return set_work(exec, hNode, host_work(nodeParams)); });
}

CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
  return with_exec(hGraphExec, [&](GraphExec& exec) { return exec.set_enabled(hNode, isEnabled != 0); });
}

CUresult CUDAAPI cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int* isEnabled) {
  return with_exec(hGraphExec, [&](GraphExec& exec) {
    bool enabled = false;
    if (isEnabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = exec.enabled(hNode, enabled);
    if (result == CUDA_SUCCESS) *isEnabled = enabled ? 1 : 0;
    return result;
  });
}

// Nothing has to be brought anywhere before the first launch.
CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  return with_exec(hGraphExec, [&](GraphExec&) {
    return stream_of(hStream) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  return with_exec(hGraphExec, [&](GraphExec& exec) {
    const StreamPtr stream = stream_of(hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    exec.launch(stream);
    return CUDA_SUCCESS;
  });
}
