// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chains/chain.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "broker/executor/base/core.hpp"
#include "broker/executor/chains/scoped_context.hpp"

namespace mpsshim::broker {

namespace {

constexpr unsigned kMissesBetweenGraphs = 4;  // functions that come once are no reason for one more

// What is longer is for floods of few kernels.
std::size_t most_of(ChainShape shape) {
  if (shape.length == 0 || shape.length > kLongestExactChain) return 1;
  return shape.length == 1 ? 16 : 8;
}

std::uint64_t functions_of(std::span<const LaunchOp* const> launches) {
  std::array<const void*, kMaxChain> functions;
  std::ranges::transform(launches, functions.begin(), [](const LaunchOp* launch) { return static_cast<const void*>(launch->function); });
  return hash_of_functions(std::span(functions.data(), launches.size()));
}

}  // namespace

void ChainCache::clear() {
  for (Shelf& shelf : shelves_) {
    for (std::unique_ptr<ChainGraph>& graph : shelf.graphs) pool_->give_back(std::move(graph));
    shelf = {};
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
  std::vector<std::unique_ptr<ChainGraph>>& graphs = shelves_[shape.index()].graphs;
  if (graphs.empty()) {
    std::unique_ptr<ChainGraph> graph = pool_->take(shape);
    if (!graph) return false;
    graphs.push_back(std::move(graph));
  }
  return true;
}

// There is one. Where none has these functions, one more if there may be; else any: the one that was used longest ago is the next to be used again
// by a program that goes round in circles.
ChainGraph& ChainCache::best_for(ChainShape shape, std::uint64_t functions, Graphs allowed) {
  Shelf& shelf = shelves_[shape.index()];
  for (const std::unique_ptr<ChainGraph>& graph : shelf.graphs) {
    if (graph->functions() == functions) return *graph;
  }
  const bool may_have_more = allowed == Graphs::several && shelf.graphs.size() < most_of(shape);
  if (may_have_more && shelf.misses++ % kMissesBetweenGraphs == 0) {
    if (std::unique_ptr<ChainGraph> graph = pool_->take_spare(shape)) return *shelf.graphs.emplace_back(std::move(graph));
  }
  random_ = random_ * 1'664'525 + 1'013'904'223;
  return *shelf.graphs[(random_ >> 16) % shelf.graphs.size()];
}

bool ChainCache::launch(CUstream stream, std::span<const LaunchOp* const> launches, const WordWrites* words, Graphs allowed) {
  const ChainShape shape{launches.size(), words != nullptr};
  if (!ensure(shape)) return false;
  ChainGraph* graph = shelves_[shape.index()].graphs.front().get();
  std::uint64_t functions = 0;
  if (allowed == Graphs::several || shelves_[shape.index()].graphs.size() > 1) {
    functions = functions_of(launches);
    graph = &best_for(shape, functions, allowed);
  }
  const ScopedContext current(core_.driver, pool_->green(), pool_->issue_lock());
  // A launch that a node cannot hold is the client's affair: issued plainly it gets the driver's own error.
  const CUresult filled = graph->fill(launches, words, functions);
  if (filled == CUDA_ERROR_NOT_SUPPORTED || filled == CUDA_ERROR_NOT_FOUND) pool_->refuse(filled, "cuGraphExecKernelNodeSetParams_v2");
  if (filled != CUDA_SUCCESS) return false;
  std::unique_lock lock(pool_->issue_lock(), std::defer_lock);
  if (pool_->green() == nullptr) lock.lock();  // elsewhere it is held already
  return core_.driver->cuGraphLaunch(graph->exec(), stream) == CUDA_SUCCESS;
}

}  // namespace mpsshim::broker
