// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chains/chain_graph.hpp"

#include <bit>
#include <cstring>

#include "broker/executor/base/core.hpp"
#include "broker/executor/base/empty_kernel.hpp"

namespace mpsshim::broker {

namespace {

// A node of one thread, for a kernel of our own.
CUDA_KERNEL_NODE_PARAMS single_thread(CUfunction function, void** parameters) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = parameters;
  return params;
}

}  // namespace

bool always_has_words(std::size_t length) { return length == 0 || (length > kLongestExactChain && length < kMaxChain); }

std::size_t ChainShape::index() const {
  const std::size_t lengths = length <= kLongestExactChain
                                  ? length
                                  : kLongestExactChain + static_cast<std::size_t>(std::countr_zero(length) - std::countr_zero(kLongestExactChain));
  return 2 * lengths + (has_words ? 1 : 0);
}

void** parameter_addresses(const LaunchOp& launch, std::vector<void*>& addresses) {
  addresses.clear();
  for (const ParameterLayout& parameter : launch.function->parameters) {
    addresses.push_back(const_cast<std::byte*>(launch.data + parameter.offset_bytes));
  }
  return addresses.empty() ? nullptr : addresses.data();
}

CUDA_KERNEL_NODE_PARAMS kernel_node_params(const LaunchOp& launch, CUcontext context, std::vector<void*>& addresses) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = launch.function->handle;
  params.gridDimX = launch.grid[0];
  params.gridDimY = launch.grid[1];
  params.gridDimZ = launch.grid[2];
  params.blockDimX = launch.block[0];
  params.blockDimY = launch.block[1];
  params.blockDimZ = launch.block[2];
  params.sharedMemBytes = launch.shared_bytes;
  params.kernelParams = parameter_addresses(launch, addresses);
  params.ctx = context;
  return params;
}

bool ChainGraph::Node::holds(const LaunchOp& launch) const {
  return function == launch.function->handle && cluster == launch.cluster && std::memcmp(grid, launch.grid, sizeof grid) == 0 &&
         std::memcmp(block, launch.block, sizeof block) == 0 && shared_bytes == launch.shared_bytes && parameters.size() == launch.parameter_bytes &&
         (parameters.empty() || std::memcmp(parameters.data(), launch.data, parameters.size()) == 0);
}

void ChainGraph::Node::hold(const LaunchOp& launch) {
  function = launch.function->handle;
  cluster = launch.cluster;
  std::memcpy(grid, launch.grid, sizeof grid);
  std::memcpy(block, launch.block, sizeof block);
  shared_bytes = launch.shared_bytes;
  parameters.assign(launch.data, launch.data + launch.parameter_bytes);
  is_empty = false;
}

std::unique_ptr<ChainGraph> ChainGraph::make(const ExecutorCore& core, ChainShape shape, CUresult& error, const char*& call) {
  std::unique_ptr<ChainGraph> chain(new ChainGraph(core, shape));
  call = "cuGraphCreate";
  error = core.driver->cuGraphCreate(&chain->graph_, 0);
  if (error == CUDA_SUCCESS) {
    call = "adding nodes to a graph";
    error = chain->add_nodes();
  }
  if (error == CUDA_SUCCESS) {
    call = "cuGraphInstantiateWithFlags";
    error = core.driver->cuGraphInstantiateWithFlags(&chain->exec_, chain->graph_, 0);
  }
  return error == CUDA_SUCCESS ? std::move(chain) : nullptr;
}

ChainGraph::~ChainGraph() {
  if (exec_ != nullptr) core_.driver->cuGraphExecDestroy(exec_);
  if (graph_ != nullptr) core_.driver->cuGraphDestroy(graph_);
}

CUresult ChainGraph::add_nodes() {
  CUgraphNode last = nullptr;
  const auto add = [&](CUgraphNode& node, const CUDA_KERNEL_NODE_PARAMS& params) {
    const CUresult result =
        core_.driver->cuGraphAddKernelNode_v2(&node, graph_, last == nullptr ? nullptr : &last, last == nullptr ? 0 : 1, &params);
    last = node;
    return result;
  };
  for (Node& kernel : kernels_) {
    const CUresult result = add(kernel.node, single_thread(core_.nop_function, EmptyKernelParameters().addresses));
    if (result != CUDA_SUCCESS) return result;
    kernel.function = core_.nop_function;
  }
  if (!shape_.has_words) return CUDA_SUCCESS;
  WordWrites words;  // fill() names the right ones; the graph is never launched before
  WriterParameters parameters(words);
  return add(writer_, single_thread(core_.writer_function, parameters.addresses));
}

CUresult ChainGraph::fill(std::span<const LaunchOp* const> launches, const WordWrites* words, std::uint64_t functions) {
  functions_ = 0;
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const CUresult result = set_kernel(kernels_[i], *launches[i]);
    if (result != CUDA_SUCCESS) return result;
  }
  functions_ = functions;
  if (words == nullptr) return CUDA_SUCCESS;
  WordWrites copy = *words;
  WriterParameters parameters(copy);
  const CUDA_KERNEL_NODE_PARAMS params = single_thread(core_.writer_function, parameters.addresses);
  return core_.driver->cuGraphExecKernelNodeSetParams_v2(exec_, writer_, &params);
}

CUresult ChainGraph::set_kernel(Node& kernel, const LaunchOp& launch) {
  if (kernel.holds(launch)) return CUDA_SUCCESS;
  const bool has_its_cluster = kernel.function != nullptr && (kernel.is_empty || kernel.cluster == launch.cluster);
  if (!has_its_cluster) {
    if (const CUresult emptied = empty(kernel); emptied != CUDA_SUCCESS) return emptied;
  }
  const CUDA_KERNEL_NODE_PARAMS params = kernel_node_params(launch, nullptr, addresses_);
  kernel.function = nullptr;  // unknown contents, should the driver fail half way
  kernel.is_empty = false;
  const CUresult result = core_.driver->cuGraphExecKernelNodeSetParams_v2(exec_, kernel.node, &params);
  if (result == CUDA_SUCCESS) kernel.hold(launch);
  return result;
}

CUresult ChainGraph::empty(Node& kernel) {
  const bool may_have_cluster = kernel.function == nullptr || kernel.cluster.is_set();
  const CUfunction function = may_have_cluster && core_.reset_function != nullptr ? core_.reset_function : core_.nop_function;
  EmptyKernelParameters parameters;
  const CUDA_KERNEL_NODE_PARAMS nothing = single_thread(function, parameters.addresses);
  const CUresult result = core_.driver->cuGraphExecKernelNodeSetParams_v2(exec_, kernel.node, &nothing);
  kernel.is_empty = result == CUDA_SUCCESS;
  kernel.function = kernel.is_empty ? function : nullptr;
  kernel.cluster = {};
  return result;
}

void ChainGraph::clear() {
  functions_ = 0;
  for (Node& kernel : kernels_) {
    if (!kernel.is_empty) (void)empty(kernel);
  }
}

}  // namespace mpsshim::broker
