// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chain.hpp"

#include <bit>
#include <cstring>
#include <mutex>

#include "broker/executor/fault.hpp"
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
  CUgraphNode writer = nullptr;
};

namespace {

constexpr std::size_t kLongestExact = 8;

std::size_t length_index(std::size_t length) {
  return length <= kLongestExact ? length : kLongestExact + static_cast<std::size_t>(std::countr_zero(length) - std::countr_zero(kLongestExact));
}

// A node of one thread, for a kernel of our own.
CUDA_KERNEL_NODE_PARAMS single_thread(CUfunction function, void** parameters) {
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = parameters;
  return params;
}

}  // namespace

std::size_t chain_length(std::size_t launches) {
  if (launches <= kLongestExact) return launches;
  return launches >= kMaxChain ? kMaxChain : std::bit_floor(launches);
}

void** parameter_addresses(const LaunchOp& launch, std::vector<void*>& addresses) {
  addresses.clear();
  for (const ParameterLayout& parameter : launch.function->parameters) {
    addresses.push_back(const_cast<std::byte*>(launch.data + parameter.offset_bytes));
  }
  return addresses.empty() ? nullptr : addresses.data();
}

ChainCache::ChainCache(ExecutorParts& parts) : parts_(parts) {}
ChainCache::~ChainCache() = default;

void ChainCache::clear() { chains_ = {}; }

bool ChainCache::launch(CUstream stream, std::span<const LaunchOp* const> launches, const WordWrites* words) {
  if (parts_.nop_function == nullptr || parts_.chains_refused.load(std::memory_order_relaxed)) return false;
  if (words != nullptr && parts_.writer_function == nullptr) return false;
  Chain* chain = find_chain(launches.size(), words != nullptr);
  // A launch that a node cannot hold is the client's affair: issued plainly it gets the driver's own error.
  if (chain == nullptr || fill(*chain, launches, words) != CUDA_SUCCESS) return false;
  const std::lock_guard lock(parts_.issue_lock);
  return parts_.driver->cuGraphLaunch(chain->exec, stream) == CUDA_SUCCESS;
}

ChainCache::Chain* ChainCache::find_chain(std::size_t length, bool has_words) {
  std::unique_ptr<Chain>& chain = chains_[length_index(length)][has_words ? 1 : 0];
  if (!chain) chain = make(length, has_words);
  return chain.get();
}

std::unique_ptr<ChainCache::Chain> ChainCache::make(std::size_t length, bool has_words) {
  const Driver& driver = parts_.driver;
  auto chain = std::make_unique<Chain>(driver);
  const char* call = "cuGraphCreate";
  CUresult result = driver->cuGraphCreate(&chain->graph, 0);
  if (result == CUDA_SUCCESS) {
    call = "adding nodes to a graph";
    result = add_nodes(*chain, length, has_words);
  }
  if (result == CUDA_SUCCESS) {
    call = "cuGraphInstantiateWithFlags";
    result = driver->cuGraphInstantiateWithFlags(&chain->exec, chain->graph, 0);
  }
  if (result == CUDA_SUCCESS) return chain;
  refuse(result, call);
  return nullptr;
}

CUresult ChainCache::add_nodes(Chain& chain, std::size_t length, bool has_words) {
  const Driver& driver = parts_.driver;
  CUgraphNode last = nullptr;
  const auto add = [&](CUgraphNode& node, const CUDA_KERNEL_NODE_PARAMS& params) {
    const CUresult result = driver->cuGraphAddKernelNode_v2(&node, chain.graph, last == nullptr ? nullptr : &last, last == nullptr ? 0 : 1, &params);
    last = node;
    return result;
  };
  chain.kernels.resize(length);
  for (Chain::Node& kernel : chain.kernels) {
    const CUresult result = add(kernel.node, single_thread(parts_.nop_function, nullptr));
    if (result != CUDA_SUCCESS) return result;
  }
  if (!has_words) return CUDA_SUCCESS;
  WordWrites words;  // fill() names the right ones; the graph is never launched before
  WriterParameters parameters(words);
  return add(chain.writer, single_thread(parts_.writer_function, parameters.addresses));
}

CUresult ChainCache::fill(Chain& chain, std::span<const LaunchOp* const> launches, const WordWrites* words) {
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const CUresult result = set_kernel(chain, i, *launches[i]);
    if (result != CUDA_SUCCESS) return result;
  }
  if (words == nullptr) return CUDA_SUCCESS;
  WordWrites copy = *words;
  WriterParameters parameters(copy);
  const CUDA_KERNEL_NODE_PARAMS params = single_thread(parts_.writer_function, parameters.addresses);
  const CUresult result = parts_.driver->cuGraphExecKernelNodeSetParams_v2(chain.exec, chain.writer, &params);
  if (result != CUDA_SUCCESS) refuse(result, "cuGraphExecKernelNodeSetParams_v2");
  return result;
}

CUresult ChainCache::set_kernel(Chain& chain, std::size_t index, const LaunchOp& launch) {
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
  if (is_fatal(result)) return;  // no refusal: the context is lost, which the plain launch that follows reports
  if (parts_.chains_refused.exchange(true, std::memory_order_relaxed)) return;
  log_warning("Launches are issued one by one from now on, not in chains: the driver refused {}: {}", call, parts_.driver.describe(result));
}

}  // namespace mpsshim::broker
