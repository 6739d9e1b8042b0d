// SPDX-License-Identifier: Apache-2.0
// Executable graphs (CUDA Driver API manual, "Graph Management").
#include <memory>
#include <utility>

#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/graphs/conditional_nodes.hpp"
#include "interposer/forward/graphs/graph_access.hpp"
#include "interposer/forward/graphs/graph_exec.hpp"
#include "interposer/forward/graphs/node_params.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// Launches from the device are not there; the others say what is so anyway (upload) or means nothing without memory nodes.
constexpr unsigned long long kKnownFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
constexpr unsigned long long kAllFlags = kKnownFlags | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;

constexpr auto kUnusedCondition = static_cast<CUgraphInstantiateResult>(5);  // CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED, since 12.8

CUresult instantiate(CUgraphExec* handle, CUgraph hGraph, unsigned long long flags, GraphExec::Failure& failure) {
  if (handle == nullptr || (flags & ~kAllFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & ~kKnownFlags) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  std::unique_ptr<GraphExec> prepared;
  const CUresult error = with_graph(hGraph, [&](Graph& graph) { return GraphExec::prepare(graph, flags, prepared, failure); });
  if (error != CUDA_SUCCESS) return error;
  GraphExec* exec = nullptr;
  const CUresult made = GraphExec::instantiate(std::move(prepared), exec, failure);
  if (made == CUDA_SUCCESS) *handle = to_handle<CUgraphExec>(exec->id());
  return made;
}

template <typename F>
CUresult with_exec(CUgraphExec handle, F&& f) {
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  GraphExec* exec = GraphExecs::instance().resolve(handle);
  return exec != nullptr ? f(*exec) : CUDA_ERROR_INVALID_VALUE;
}

template <typename Make>
CUresult set_node(CUgraphExec hGraphExec, CUgraphNode hNode, Make&& make) {
  return with_exec(hGraphExec, [&](GraphExec& exec) {
    WorkRef work;
    if (const CUresult error = make(work); error != CUDA_SUCCESS) return error;
    return exec.set_work(id_of<proto::HandleKind::graph_node>(hNode), work);
  });
}

// A node's attributes are those of its graph and stay.
CUresult set_kernel(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v3& params) {
  return set_node(hGraphExec, hNode, [&](WorkRef& work) {
    if (const CUresult error = make_kernel_work(params, work); error != CUDA_SUCCESS) return error;
    return with_node(hNode, [&](const Node& node) {
      const auto* kernel = std::get_if<KernelWork>(node.work.get());
      WorkRef changed = kernel != nullptr ? with_attributes_of(std::get<KernelWork>(*work), *kernel) : nullptr;
      if (changed == nullptr) return CUDA_ERROR_INVALID_VALUE;
      work = std::move(changed);
      return CUDA_SUCCESS;
    });
  });
}

}  // namespace

CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode, char* logBuffer, size_t bufferSize) {
  GraphExec::Failure failure;
  const CUresult error = instantiate(phGraphExec, hGraph, 0, failure);
  if (phErrorNode != nullptr) *phErrorNode = to_handle<CUgraphNode>(failure.node);
  if (logBuffer != nullptr && bufferSize != 0) logBuffer[0] = '\0';
  return error;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph, unsigned long long flags) {
  GraphExec::Failure failure;
  // The upload is ordered in a stream that only cuGraphInstantiateWithParams names.
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) return CUDA_ERROR_INVALID_VALUE;
  return instantiate(phGraphExec, hGraph, flags, failure);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  if (instantiateParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphExec::Failure failure;
  const CUresult error = instantiate(phGraphExec, hGraph, instantiateParams->flags, failure);
  instantiateParams->hErrNode_out = to_handle<CUgraphNode>(failure.node);
  instantiateParams->result_out = error == CUDA_SUCCESS          ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                                  : failure.is_cycle             ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                  : failure.has_unused_condition ? kUnusedCondition
                                                                 : CUDA_GRAPH_INSTANTIATE_ERROR;
  return error;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  if (const CUresult error = session().ensure_attached(); error != CUDA_SUCCESS) return error;
  GraphExec* exec = GraphExecs::instance().resolve(hGraphExec);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = exec->destroy();
  UserObjects::instance().run_destructors();
  end_conditions();
  return error;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_exec(hGraphExec, [&](GraphExec& exec) {
    *flags = exec.flags() & ~static_cast<cuuint64_t>(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  if (const CUresult error = begin_on(hStream); error != CUDA_SUCCESS) return error;
  GraphExec* exec = GraphExecs::instance().resolve(hGraphExec);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = Streams::instance().resolve(hStream);
  return stream != nullptr ? exec->launch(*stream) : CUDA_ERROR_INVALID_HANDLE;
}

// Instantiating has done it.
CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  if (const CUresult error = begin_on(hStream); error != CUDA_SUCCESS) return error;
  if (GraphExecs::instance().resolve(hGraphExec) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = Streams::instance().resolve(hStream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return stream->is_captured.load(std::memory_order_relaxed) ? Captures::instance().refuse(*stream) : CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo* resultInfo) {
  if (resultInfo == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_exec(hGraphExec, [&](GraphExec& exec) {
    GraphExec::Failure failure;
    const CUresult error = with_graph(hGraph, [&](Graph& graph) { return exec.update(graph, failure); });
    *resultInfo = {};
    resultInfo->result = error == CUDA_SUCCESS || failure.update != CU_GRAPH_EXEC_UPDATE_SUCCESS ? failure.update : CU_GRAPH_EXEC_UPDATE_ERROR;
    resultInfo->errorNode = to_handle<CUgraphNode>(failure.node);
    return error;
  });
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out, CUgraphExecUpdateResult* updateResult_out) {
  if (updateResult_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info{};
  const CUresult error = api::cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
  *updateResult_out = info.result;
  if (hErrorNode_out != nullptr) *hErrorNode_out = info.errorNode;
  return error;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  return nodeParams != nullptr ? set_kernel(hGraphExec, hNode, kernel_params(*nodeParams)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return nodeParams != nullptr ? set_kernel(hGraphExec, hNode, kernel_params(*nodeParams)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  if (copyParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node(hGraphExec, hNode, [&](WorkRef& work) { return make_copy_work(*copyParams, ctx, work); });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
  if (memsetParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node(hGraphExec, hNode, [&](WorkRef& work) { return make_fill_work(*memsetParams, ctx, work); });
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node(hGraphExec, hNode, [&](WorkRef& work) { return make_host_work(*nodeParams, work); });
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return set_node(hGraphExec, hNode, [&](WorkRef& work) { return make_memory_operations_work(*nodeParams, work); });
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
  return set_node(hGraphExec, hNode, [&](WorkRef& work) { return make_event_work(event, false, work); });
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
  return set_node(hGraphExec, hNode, [&](WorkRef& work) { return make_event_work(event, true, work); });
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph) {
  return with_exec(hGraphExec, [&](GraphExec& exec) {
    return with_node(hNode, [&](const Node& node) {
      const Graph* graph = Graphs::instance().resolve(childGraph);
      return node.child != nullptr && graph != nullptr ? exec.update_child(*node.child, *graph) : CUDA_ERROR_INVALID_VALUE;
    });
  });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_KERNEL) return set_kernel(hGraphExec, hNode, nodeParams->kernel);
  if (nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH) return api::cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, nodeParams->graph.graph);
  CUgraph child = nullptr;
  return set_node(hGraphExec, hNode, [&](WorkRef& work) { return make_work(*nodeParams, work, child); });
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
  return with_exec(hGraphExec, [&](GraphExec& exec) { return exec.set_enabled(id_of<proto::HandleKind::graph_node>(hNode), isEnabled != 0); });
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int* isEnabled) {
  if (isEnabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_exec(hGraphExec, [&](GraphExec& exec) {
    bool enabled = false;
    const CUresult error = exec.is_enabled(id_of<proto::HandleKind::graph_node>(hNode), enabled);
    if (error == CUDA_SUCCESS) *isEnabled = enabled ? 1 : 0;
    return error;
  });
}

}  // namespace mpsshim::interposer::api
