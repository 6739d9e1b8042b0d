// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chain.hpp"

#include <bit>
#include <cstring>

#include "broker/executor/parts.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

struct ChainCache::Chain {
  // What a kernel node holds, to leave it alone where nothing changes.
  struct Node {
    CUgraphNode node = nullptr;
    CUfunction function = nullptr;
    std::uint32_t grid[3] = {};
    std::uint32_t block[3] = {};
    std::uint32_t shared_bytes = 0;
    std::vector<std::byte> parameters;

    [[nodiscard]] bool holds(const LaunchOp& launch) const {
      return function == launch.function->handle && std::memcmp(grid, launch.grid, sizeof grid) == 0 &&
             std::memcmp(block, launch.block, sizeof block) == 0 && shared_bytes == launch.shared_bytes &&
             parameters.size() == launch.parameter_bytes &&
             (parameters.empty() || std::memcmp(parameters.data(), launch.data, parameters.size()) == 0);
    }
    void hold(const LaunchOp& launch) {
      function = launch.function->handle;
      std::memcpy(grid, launch.grid, sizeof grid);
      std::memcpy(block, launch.block, sizeof block);
      shared_bytes = launch.shared_bytes;
      parameters.assign(launch.data, launch.data + launch.parameter_bytes);
    }
  };

  explicit Chain(const Driver& owner) : driver(owner) {}
  ~Chain() {
    if (exec != nullptr) driver->cuGraphExecDestroy(exec);
    if (graph != nullptr) driver->cuGraphDestroy(graph);
  }

  const Driver& driver;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  std::vector<Node> kernels;
  CUgraphNode tail = nullptr;
};

namespace {

void set_write(CUstreamBatchMemOpParams& write, CUdeviceptr address, std::uint32_t value) {
  write = {};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = address;
  write.writeValue.value = value;
  write.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
}

}  // namespace

// Progress comes last: once it is seen, the fence is.
void set_writes(const ChainTail& tail, CUstreamBatchMemOpParams (&writes)[2]) {
  const bool has_fence = tail.fence != 0;
  set_write(writes[0], has_fence ? tail.fence : tail.progress, has_fence ? tail.fence_value : tail.progress_value);
  set_write(writes[1], tail.progress, tail.progress_value);
}

std::size_t chain_length(std::size_t launches) { return launches >= kMaxChain ? kMaxChain : std::bit_floor(launches); }

void** parameter_addresses(const LaunchOp& launch, std::vector<void*>& addresses) {
  addresses.clear();
  for (const ParameterLayout& parameter : launch.function->parameters) {
    addresses.push_back(const_cast<std::byte*>(launch.data + parameter.offset_bytes));
  }
  return addresses.empty() ? nullptr : addresses.data();
}

ChainCache::ChainCache(ExecutorParts& parts) : parts_(parts) {}
ChainCache::~ChainCache() = default;

void ChainCache::clear() {
  for (auto& pair : turns_) {
    for (Turns& turns : pair) turns = {};
  }
}

bool ChainCache::launch(CUstream stream, std::span<const LaunchOp* const> launches, const ChainTail* tail) {
  if (parts_.nop_function == nullptr || parts_.chains_refused.load(std::memory_order_relaxed)) return false;
  Chain* chain = next_chain(launches.size(), tail != nullptr);
  // A launch that a node cannot hold is the client's affair: issued plainly it gets the driver's own error.
  if (chain == nullptr || fill(*chain, launches, tail) != CUDA_SUCCESS) return false;
  return parts_.driver->cuGraphLaunch(chain->exec, stream) == CUDA_SUCCESS;
}

ChainCache::Chain* ChainCache::next_chain(std::size_t length, bool has_tail) {
  Turns& turns = turns_[static_cast<std::size_t>(std::countr_zero(length))][has_tail];
  std::unique_ptr<Chain>& chain = turns.chains[turns.next];
  turns.next = (turns.next + 1) % kTurns;
  if (!chain) chain = make(length, has_tail);
  return chain.get();
}

std::unique_ptr<ChainCache::Chain> ChainCache::make(std::size_t length, bool has_tail) {
  const Driver& driver = parts_.driver;
  auto chain = std::make_unique<Chain>(driver);
  const char* call = "cuGraphCreate";
  CUresult result = driver->cuGraphCreate(&chain->graph, 0);
  if (result == CUDA_SUCCESS) {
    call = "adding nodes to a graph";
    result = add_nodes(*chain, length, has_tail);
  }
  if (result == CUDA_SUCCESS) {
    call = "cuGraphInstantiateWithFlags";
    result = driver->cuGraphInstantiateWithFlags(&chain->exec, chain->graph, 0);
  }
  if (result == CUDA_SUCCESS) return chain;
  refuse(result, call);
  return nullptr;
}

CUresult ChainCache::add_nodes(Chain& chain, std::size_t length, bool has_tail) {
  const Driver& driver = parts_.driver;
  CUDA_KERNEL_NODE_PARAMS nop{};
  nop.func = parts_.nop_function;
  nop.gridDimX = nop.gridDimY = nop.gridDimZ = nop.blockDimX = nop.blockDimY = nop.blockDimZ = 1;
  CUgraphNode last = nullptr;
  chain.kernels.resize(length);
  for (Chain::Node& kernel : chain.kernels) {
    const CUresult result = driver->cuGraphAddKernelNode_v2(&kernel.node, chain.graph, last == nullptr ? nullptr : &last, last == nullptr ? 0 : 1, &nop);
    if (result != CUDA_SUCCESS) return result;
    last = kernel.node;
  }
  if (!has_tail) return CUDA_SUCCESS;
  // Any word of ours will do until fill() names the right ones; the node is never launched before.
  CUstreamBatchMemOpParams writes[2];
  set_writes({parts_.progress.completed_address(0), 0, 0, 0}, writes);
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params{parts_.context, 2, writes, 0};
  return driver->cuGraphAddBatchMemOpNode(&chain.tail, chain.graph, &last, 1, &params);
}

CUresult ChainCache::fill(Chain& chain, std::span<const LaunchOp* const> launches, const ChainTail* tail) {
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const CUresult result = set_node(chain, i, *launches[i]);
    if (result != CUDA_SUCCESS) return result;
  }
  if (tail == nullptr) return CUDA_SUCCESS;
  CUstreamBatchMemOpParams writes[2];
  set_writes(*tail, writes);
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params{parts_.context, 2, writes, 0};
  const CUresult result = parts_.driver->cuGraphExecBatchMemOpNodeSetParams(chain.exec, chain.tail, &params);
  if (result != CUDA_SUCCESS) refuse(result, "cuGraphExecBatchMemOpNodeSetParams");
  return result;
}

CUresult ChainCache::set_node(Chain& chain, std::size_t index, const LaunchOp& launch) {
  Chain::Node& kernel = chain.kernels[index];
  if (kernel.holds(launch)) return CUDA_SUCCESS;
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = launch.function->handle;
  params.gridDimX = launch.grid[0];
  params.gridDimY = launch.grid[1];
  params.gridDimZ = launch.grid[2];
  params.blockDimX = launch.block[0];
  params.blockDimY = launch.block[1];
  params.blockDimZ = launch.block[2];
  params.sharedMemBytes = launch.shared_bytes;
  params.kernelParams = parameter_addresses(launch, addresses_);
  kernel.function = nullptr;  // unknown contents, should the driver fail half way
  const CUresult result = parts_.driver->cuGraphExecKernelNodeSetParams_v2(chain.exec, kernel.node, &params);
  if (result == CUDA_SUCCESS) {
    kernel.hold(launch);
  } else if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_FOUND) {
    refuse(result, "cuGraphExecKernelNodeSetParams_v2");
  }
  return result;
}

void ChainCache::refuse(CUresult result, const char* call) {
  if (parts_.chains_refused.exchange(true, std::memory_order_relaxed)) return;
  log_warning("Launches are issued one by one from now on, not in chains: the driver refused {}: {}", call, parts_.driver.describe(result));
}

}  // namespace mpsshim::broker
