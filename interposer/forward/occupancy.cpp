// SPDX-License-Identifier: Apache-2.0
// Occupancy (CUDA Driver API manual, "Occupancy").
#include "interposer/forward/occupancy.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <tuple>

#include "gen/api_declarations.hpp"
#include "interposer/entry.hpp"
#include "interposer/forward/launch.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

// The driver's function has the largest limits that any client has set on it, so what follows from a client's own is said here, as the driver says
// it (measured: docs/experiments/2026-11-23-occupancy.md).
bool exceeds_own_limit(const Function& function, std::size_t shared_bytes) {
  const std::int32_t limit = function.max_dynamic_shared_bytes.load(std::memory_order_relaxed);
  return shared_bytes > static_cast<std::size_t>(std::max(limit, 0));
}

// Answers depend on the function's attributes too (carve-out, dynamic shared memory): they are part of the key.
using Key = std::tuple<std::uint64_t, proto::OccupancyQuestion, int, std::uint64_t, std::uint32_t, int, int, int>;

class Cache {
 public:
  static Cache& instance() {
    return PerSession<Cache>::get([] { return new Cache(); });
  }
  CUresult ask(const Function& function, proto::OccupancyRecord record, std::uint64_t& value) {
    const Key key{function.id.value,
                  record.query,
                  record.block_size,
                  record.shared_bytes,
                  record.flags,
                  record.blocks,
                  function.attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES].load(std::memory_order_relaxed),
                  function.attribute[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT].load(std::memory_order_relaxed)};
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = answers_.find(key); found != answers_.end()) {
        value = found->second;
        return CUDA_SUCCESS;
      }
    }
    record.function = function.id;
    proto::OccupancyReply reply{};
    if (const CUresult error = session().channel().call({}, record, {}, reply); error != CUDA_SUCCESS) return error;
    value = reply.value;
    const std::lock_guard lock(mutex_);
    if (answers_.size() >= kMaxAnswers) answers_.clear();
    answers_.emplace(key, value);
    return CUDA_SUCCESS;
  }

 private:
  static constexpr std::size_t kMaxAnswers = 4096;
  Mutex mutex_;
  std::map<Key, std::uint64_t> answers_ GUARDED_BY(mutex_);
};

}  // namespace

CUresult max_active_blocks(Function& function, int block_size, std::size_t shared_bytes, unsigned int flags, int& blocks) {
  if (exceeds_own_limit(function, shared_bytes)) {
    blocks = 0;
    return CUDA_SUCCESS;
  }
  proto::OccupancyRecord record{};
  record.query = proto::OccupancyQuestion::active_blocks;
  record.block_size = block_size;
  record.shared_bytes = shared_bytes;
  record.flags = flags;
  std::uint64_t value = 0;
  const CUresult error = Cache::instance().ask(function, record, value);
  if (error == CUDA_SUCCESS) blocks = static_cast<int>(value);
  return error;
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

template <typename F>
CUresult with_function_in_context(CUfunction handle, F&& f) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  Function* function = Functions::instance().resolve(handle);
  return function != nullptr ? f(*function) : CUDA_ERROR_INVALID_HANDLE;
}

int fact(CUdevice_attribute attribute) {
  const proto::DeviceFacts* facts = device_facts(session_device());
  int value = 0;
  if (facts == nullptr || device_attribute(*facts, attribute, value) != CUDA_SUCCESS) return 0;
  return value;
}

// The search that the toolkit's cuda_occupancy.h makes: block sizes from the largest down by warps, most threads on a multiprocessor wins.
CUresult best_block_size(Function& function, CUoccupancyB2DSize shared_of, std::size_t shared_bytes, int limit, unsigned int flags, int& grid_size,
                         int& block_size) {
  const int warp = std::max(fact(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 1);
  const int most_threads = fact(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  int largest = std::min(fact(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK), function.max_threads_per_block.load(std::memory_order_relaxed));
  if (limit > 0) largest = std::min(largest, limit);
  int best_threads = 0;
  for (int rounded = (largest + warp - 1) / warp * warp; rounded > 0; rounded -= warp) {
    const int candidate = std::min(rounded, largest);
    const std::size_t dynamic = shared_of != nullptr ? shared_of(candidate) : shared_bytes;
    int blocks = 0;
    if (const CUresult error = max_active_blocks(function, candidate, dynamic, flags, blocks); error != CUDA_SUCCESS) return error;
    if (candidate * blocks > best_threads) {
      best_threads = candidate * blocks;
      block_size = candidate;
      grid_size = blocks * fact(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    }
    if (best_threads == most_threads) break;
  }
  return best_threads > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

std::uint64_t blocks_of_cluster(const CUlaunchConfig& config) {
  for (const CUlaunchAttribute& attribute : std::span(config.attrs, config.numAttrs)) {
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& cluster = attribute.value.clusterDim;
    return std::uint64_t{cluster.x} * cluster.y * cluster.z;
  }
  return 1;
}

CUresult ask_of_clusters(int* answer, CUfunction handle, const CUlaunchConfig* config, proto::ClusterQuestion query) {
  if (answer == nullptr || config == nullptr || (config->numAttrs > 0 && config->attrs == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return with_function_in_context(handle, [&](Function& function) {
    const proto::ClusterOccupancyRecord record{function.id,
                                               config->gridDimX,
                                               config->gridDimY,
                                               config->gridDimZ,
                                               config->blockDimX,
                                               config->blockDimY,
                                               config->blockDimZ,
                                               config->sharedMemBytes,
                                               config->numAttrs,
                                               query,
                                               0};
    proto::ClusterOccupancyReply reply{};
    const bool may_exceed_portable = function.attribute[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED].load(std::memory_order_relaxed) != 0;
    if (!may_exceed_portable && blocks_of_cluster(*config) > kMostPortableBlocksOfCluster) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    const auto attributes = std::as_bytes(std::span(config->attrs, config->numAttrs));
    const CUresult error = session().channel().call({}, record, attributes, reply);
    if (error != CUDA_SUCCESS) return error;
    *answer = static_cast<int>(reply.value);
    if (exceeds_own_limit(function, config->sharedMemBytes)) *answer = 0;
    if (query == proto::ClusterQuestion::cluster_size && !may_exceed_portable)
      *answer = std::min(*answer, static_cast<int>(kMostPortableBlocksOfCluster));
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize,
                                                              unsigned int flags) {
  if (numBlocks == nullptr || blockSize <= 0 || (flags & ~static_cast<unsigned int>(CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with_function_in_context(func,
                                  [&](Function& function) { return max_active_blocks(function, blockSize, dynamicSMemSize, flags, *numBlocks); });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize) {
  return api::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize, CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func, CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags) {
  if (minGridSize == nullptr || blockSize == nullptr || blockSizeLimit < 0) return CUDA_ERROR_INVALID_VALUE;
  return with_function_in_context(func, [&](Function& function) {
    return best_block_size(function, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, flags, *minGridSize, *blockSize);
  });
}

CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func, CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit) {
  return api::cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit,
                                                        CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func, int numBlocks, int blockSize) {
  if (dynamicSmemSize == nullptr || numBlocks <= 0 || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
  return with_function_in_context(func, [&](Function& function) {
    proto::OccupancyRecord record{};
    record.query = proto::OccupancyQuestion::shared_memory;
    record.block_size = blockSize;
    record.blocks = numBlocks;
    std::uint64_t value = 0;
    const CUresult error = Cache::instance().ask(function, record, value);
    const std::int32_t limit = function.max_dynamic_shared_bytes.load(std::memory_order_relaxed);
    if (error == CUDA_SUCCESS) *dynamicSmemSize = std::min<std::size_t>(value, static_cast<std::size_t>(std::max(limit, 0)));
    return error;
  });
}

CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func, const CUlaunchConfig* config) {
  return ask_of_clusters(numClusters, func, config, proto::ClusterQuestion::active_clusters);
}
CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func, const CUlaunchConfig* config) {
  return ask_of_clusters(clusterSize, func, config, proto::ClusterQuestion::cluster_size);
}

}  // namespace mpsshim::interposer::api
