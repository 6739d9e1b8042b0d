// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chains/chain.hpp"

#include <mutex>
#include <utility>

#include "broker/executor/base/core.hpp"
#include "broker/executor/chains/scoped_context.hpp"

namespace mpsshim::broker {

void ChainCache::clear() {
  for (std::unique_ptr<ChainGraph>& chain : chains_) {
    if (chain) pool_->give_back(std::move(chain));
  }
}

void ChainCache::move_to(ChainPool& pool) {
  clear();
  core_.stress.streams_exchanged.fetch_add(1, std::memory_order_relaxed);
  pool_ = &pool;
}

bool ChainCache::ensure(ChainShape shape) {
  if (core_.nop_function == nullptr || pool_->is_refused()) return false;
  if (shape.has_words && core_.writer_function == nullptr) return false;
  std::unique_ptr<ChainGraph>& chain = chains_[shape.index()];
  if (!chain) chain = pool_->take(shape);
  return chain != nullptr;
}

bool ChainCache::launch(CUstream stream, std::span<const LaunchOp* const> launches, const WordWrites* words) {
  const ChainShape shape{launches.size(), words != nullptr};
  if (!ensure(shape)) return false;
  const std::unique_ptr<ChainGraph>& chain = chains_[shape.index()];
  const ScopedContext current(core_.driver, pool_->green(), pool_->issue_lock());
  // A launch that a node cannot hold is the client's affair: issued plainly it gets the driver's own error.
  const CUresult filled = chain->fill(launches, words);
  if (filled == CUDA_ERROR_NOT_SUPPORTED || filled == CUDA_ERROR_NOT_FOUND) pool_->refuse(filled, "cuGraphExecKernelNodeSetParams_v2");
  if (filled != CUDA_SUCCESS) return false;
  std::unique_lock lock(pool_->issue_lock(), std::defer_lock);
  if (pool_->green() == nullptr) lock.lock();  // elsewhere it is held already
  return core_.driver->cuGraphLaunch(chain->exec(), stream) == CUDA_SUCCESS;
}

}  // namespace mpsshim::broker
