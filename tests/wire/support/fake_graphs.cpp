// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/wire/support/fake_work.hpp"

namespace mpsshim::test {

namespace {

struct FakeGraph {
  struct Node {
    bool is_kernel = true;
    CUDA_KERNEL_NODE_PARAMS kernel{};
    std::vector<std::byte> parameters;
    std::vector<CUstreamBatchMemOpParams> writes;
    std::optional<FakeCall> memory;  // a copy or fill
    FakeCluster attribute{};         // of the functions that it was set to, the last one that there was
    FakeCluster cluster{};           // in which it is launched
    bool is_made_in_cluster = false;  // by an attribute of its own: it stays
    bool is_enabled = true;
    bool is_gone = false;
    CUcontext context = nullptr;
    std::vector<std::unique_ptr<FakeGraph>> bodies{};  // of a conditional node
    std::vector<CUgraph> body_handles{};
  };
  std::vector<std::unique_ptr<Node>> nodes;
  bool has_conditions = false;
};

bool has_same_shape(const CUDA_KERNEL_NODE_PARAMS& a, const CUDA_KERNEL_NODE_PARAMS& b) {
  return a.gridDimX == b.gridDimX && a.gridDimY == b.gridDimY && a.gridDimZ == b.gridDimZ && a.blockDimX == b.blockDimX &&
         a.blockDimY == b.blockDimY && a.blockDimZ == b.blockDimZ;
}

// Clusters as NVIDIA's driver does it: a node takes the cluster of another function that has one, keeps it for those that have none, and is
// launched in it from the next change of its shape on.
void assign(FakeGraph::Node& node, const CUDA_KERNEL_NODE_PARAMS& params) {
  const FakeDriver& fake = FakeDriver::current();
  const auto* function = reinterpret_cast<const FakeFunction*>(params.func);
  const bool takes_cluster = !fake.ignores_clusters && (!fake.keeps_clusters || node.attribute == kNoCluster);
  if (node.kernel.func != params.func && function->cluster != kNoCluster && takes_cluster) node.attribute = function->cluster;
  if (!node.is_made_in_cluster && !has_same_shape(node.kernel, params)) node.cluster = node.attribute == kOneBlock ? kNoCluster : node.attribute;
  node.kernel = params;
  node.parameters = params.kernelParams != nullptr ? gather(*function, params.kernelParams) : std::vector<std::byte>{};
}

CUresult CUDAAPI graph_create(CUgraph* graph, unsigned) {
  if (!FakeDriver::current().has_graphs) return CUDA_ERROR_NOT_SUPPORTED;
  *graph = reinterpret_cast<CUgraph>(new FakeGraph());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI graph_destroy(CUgraph graph) {
  if (reinterpret_cast<FakeGraph*>(graph)->has_conditions) --FakeDriver::current().conditioned_graphs;
  delete reinterpret_cast<FakeGraph*>(graph);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI add_kernel(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t, const CUDA_KERNEL_NODE_PARAMS* params) {
  auto& nodes = reinterpret_cast<FakeGraph*>(graph)->nodes;
  nodes.push_back(std::make_unique<FakeGraph::Node>());
  assign(*nodes.back(), *params);
  nodes.back()->context = FakeDriver::pushed_context();
  *node = reinterpret_cast<CUgraphNode>(nodes.back().get());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI add_batch(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  auto& nodes = reinterpret_cast<FakeGraph*>(graph)->nodes;
  nodes.push_back(std::make_unique<FakeGraph::Node>());
  nodes.back()->is_kernel = false;
  nodes.back()->writes.assign(params->paramArray, params->paramArray + params->count);
  *node = reinterpret_cast<CUgraphNode>(nodes.back().get());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI make_condition(CUgraphConditionalHandle* handle, CUgraph graph, CUcontext, unsigned, unsigned) {
  auto& conditioned = *reinterpret_cast<FakeGraph*>(graph);
  if (!std::exchange(conditioned.has_conditions, true)) ++FakeDriver::current().conditioned_graphs;
  *handle = ++FakeDriver::current().last_condition;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI add_condition(CUgraphNode* node, CUgraph graph, const CUgraphNode*, const CUgraphEdgeData*, std::size_t, CUgraphNodeParams* params) {
  auto& nodes = reinterpret_cast<FakeGraph*>(graph)->nodes;
  nodes.push_back(std::make_unique<FakeGraph::Node>());
  FakeGraph::Node& made = *nodes.back();
  made.is_kernel = false;
  for (unsigned i = 0; i < params->conditional.size; ++i) {
    made.bodies.push_back(std::make_unique<FakeGraph>());
    made.body_handles.push_back(reinterpret_cast<CUgraph>(made.bodies.back().get()));
  }
  params->conditional.phGraph_out = made.body_handles.data();
  *node = reinterpret_cast<CUgraphNode>(nodes.back().get());
  return CUDA_SUCCESS;
}

// Of a graph with conditions, whose nodes are few: found by its address.
CUresult CUDAAPI destroy_node(CUgraphNode node) {
  reinterpret_cast<FakeGraph::Node*>(node)->is_gone = true;
  return CUDA_SUCCESS;
}

// Nodes that do nothing here.
template <typename... Parameters>
CUresult CUDAAPI add_other(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t, Parameters...) {
  auto& nodes = reinterpret_cast<FakeGraph*>(graph)->nodes;
  nodes.push_back(std::make_unique<FakeGraph::Node>());
  nodes.back()->is_kernel = false;
  *node = reinterpret_cast<CUgraphNode>(nodes.back().get());
  return CUDA_SUCCESS;
}

void assign(FakeGraph::Node& node, const CUDA_MEMCPY3D& params) {
  node.memory = FakeCall(FakeCall::copy);
  node.memory->destination = params.dstMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uint64_t>(params.dstHost) : params.dstDevice;
  node.memory->source = params.srcMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uint64_t>(params.srcHost) : params.srcDevice;
  node.memory->bytes_or_value = params.WidthInBytes;
}

void assign(FakeGraph::Node& node, const CUDA_MEMSET_NODE_PARAMS& params) {
  node.memory = FakeCall(FakeCall::fill);
  node.memory->destination = params.dst;
  node.memory->bytes_or_value = params.value;
}

template <typename Params>
CUresult CUDAAPI add_memory(CUgraphNode* node, CUgraph graph, const CUgraphNode*, std::size_t, const Params* params, CUcontext) {
  auto& nodes = reinterpret_cast<FakeGraph*>(graph)->nodes;
  nodes.push_back(std::make_unique<FakeGraph::Node>());
  nodes.back()->is_kernel = false;
  assign(*nodes.back(), *params);
  *node = reinterpret_cast<CUgraphNode>(nodes.back().get());
  return CUDA_SUCCESS;
}

template <typename Params>
CUresult CUDAAPI set_memory(CUgraphExec, CUgraphNode node, const Params* params, CUcontext) {
  if (FakeDriver::current().refuses_changes) return CUDA_ERROR_INVALID_VALUE;
  assign(*reinterpret_cast<FakeGraph::Node*>(node), *params);
  return CUDA_SUCCESS;
}

// An exec is its graph: the code under test has one of each other.
CUresult CUDAAPI instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  ++FakeDriver::current().graphs_made;
  *exec = reinterpret_cast<CUgraphExec>(graph);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI exec_destroy(CUgraphExec) { return CUDA_SUCCESS; }
CUresult CUDAAPI set_kernel(CUgraphExec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  FakeDriver& fake = FakeDriver::current();
  if (!fake.has_graphs) return CUDA_ERROR_NOT_SUPPORTED;
  ++fake.function_users;
  if (fake.function_changes != 0 && reinterpret_cast<const FakeFunction*>(params->func)->name != kWriter) ++fake.function_conflicts;
  --fake.function_users;
  if (reinterpret_cast<FakeGraph::Node*>(node)->context != FakeDriver::pushed_context()) return CUDA_ERROR_INVALID_VALUE;  // as NVIDIA's
  if (reinterpret_cast<FakeGraph::Node*>(node)->kernel.func != params->func) ++fake.other_functions;
  assign(*reinterpret_cast<FakeGraph::Node*>(node), *params);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI set_batch(CUgraphExec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  reinterpret_cast<FakeGraph::Node*>(node)->writes.assign(params->paramArray, params->paramArray + params->count);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI set_attribute(CUgraphNode handle, CUkernelNodeAttrID id, const CUkernelNodeAttrValue* value) {
  if (id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return CUDA_SUCCESS;
  FakeGraph::Node& node = *reinterpret_cast<FakeGraph::Node*>(handle);
  const FakeCluster wanted{value->clusterDim.x, value->clusterDim.y, value->clusterDim.z};
  const bool may_have_one = node.cluster == wanted && !FakeDriver::current().refuses_clustered_nodes;
  if (node.cluster != kNoCluster && !may_have_one) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  node.cluster = wanted;
  node.is_made_in_cluster = true;
  return CUDA_SUCCESS;
}

// What may run in a conditional node's bodies.
void add_bodies(const FakeGraph::Node& node, std::vector<FakeCall>& calls) {
  for (const auto& body : node.bodies) {
    for (const auto& inner : body->nodes) {
      if (inner->memory && inner->is_enabled) calls.push_back(*inner->memory);
      if (inner->is_enabled) add_bodies(*inner, calls);
    }
  }
}

}  // namespace

CUresult CUDAAPI FakeGraphs::launch(CUgraphExec exec, CUstream stream) {
  const auto& nodes = reinterpret_cast<FakeGraph*>(exec)->nodes;
  std::vector<FakeCall> calls;
  std::vector<CUstreamBatchMemOpParams> writes;
  std::size_t kernels = 0;
  for (const auto& node : nodes) {
    if (node->is_kernel && !divides(node->cluster, node->kernel.gridDimX)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  const auto is_writer = [](const FakeGraph::Node& node) {
    return node.is_kernel && reinterpret_cast<const FakeFunction*>(node.kernel.func)->name == kWriter;
  };
  for (const auto& node : nodes) {
    if (is_writer(*node))
      node->writes = writes_of_kernel(node->parameters);
    else if (node->is_kernel)
      ++kernels;
  }
  const unsigned number = ++FakeDriver::current().graph_launches_;
  for (const auto& node : nodes) {
    if (node->is_gone) continue;
    if (node->is_kernel && !is_writer(*node)) {
      FakeCall call(FakeCall::launch);
      call.function = reinterpret_cast<const FakeFunction*>(node->kernel.func);
      call.grid_x = node->kernel.gridDimX;
      call.cluster = node->cluster;
      call.parameters = node->parameters;
      call.graph_context = node->context;
      calls.push_back(std::move(call));
    }
    if (node->memory && node->is_enabled) calls.push_back(*node->memory);
    if (node->is_enabled) add_bodies(*node, calls);
    for (const auto& operation : node->writes) {
      calls.push_back(write_call(operation));
      calls.back().graph_context = node->context;
      writes.push_back(operation);
    }
  }
  for (FakeCall& call : calls) {
    const bool is_copy = call.kind == FakeCall::copy;
    if (is_copy || call.kind == FakeCall::fill) FakeDriver::current().oracle.begin_at("cuGraphLaunch: a node's destination", call.destination);
    if (is_copy) FakeDriver::current().oracle.begin_at("cuGraphLaunch: a node's source", call.source);
    call.chain = number;
    call.chain_length = kernels;
  }
  FakeDriver::current().submit_all(stream, calls, [calls, writes] {
    for (const FakeCall& call : calls) {
      if (call.kind == FakeCall::launch) run_kernel(call);
    }
    for (const auto& operation : writes) write_value(operation);
  });
  return CUDA_SUCCESS;
}

void FakeGraphs::fill(DriverTable& table) {
  table.cuGraphCreate = graph_create;
  table.cuGraphDestroy = graph_destroy;
  table.cuGraphAddKernelNode_v2 = add_kernel;
  table.cuGraphAddBatchMemOpNode = add_batch;
  table.cuGraphAddEmptyNode = add_other<>;
  table.cuGraphConditionalHandleCreate = make_condition;
  table.cuGraphAddNode_v2 = add_condition;
  table.cuGraphDestroyNode = destroy_node;
  table.cuGraphKernelNodeSetAttribute = set_attribute;
  table.cuGraphAddEventRecordNode = add_other<CUevent>;
  table.cuGraphAddMemcpyNode = add_memory<CUDA_MEMCPY3D>;
  table.cuGraphAddMemsetNode = add_memory<CUDA_MEMSET_NODE_PARAMS>;
  table.cuGraphExecMemcpyNodeSetParams = set_memory<CUDA_MEMCPY3D>;
  table.cuGraphExecMemsetNodeSetParams = set_memory<CUDA_MEMSET_NODE_PARAMS>;
  table.cuGraphInstantiateWithFlags = instantiate;
  table.cuGraphNodeSetEnabled = [](CUgraphExec, CUgraphNode node, unsigned is_enabled) {
    reinterpret_cast<FakeGraph::Node*>(node)->is_enabled = is_enabled != 0;
    return CUDA_SUCCESS;
  };
  table.cuGraphUpload = [](CUgraphExec, CUstream) { return CUDA_SUCCESS; };
  table.cuGraphExecDestroy = exec_destroy;
  table.cuGraphExecKernelNodeSetParams_v2 = set_kernel;
  table.cuGraphExecBatchMemOpNodeSetParams = set_batch;
  table.cuGraphLaunch = FakeGraphs::launch;
}

}  // namespace mpsshim::test
