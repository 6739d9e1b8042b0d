// SPDX-License-Identifier: Apache-2.0
// Runs of launches as prepared linear graphs: setting the parameters of a kernel node costs a fraction of a launch, and a whole run is one
// submission. The last node may be the kernel that writes the client's fence and the progress word (word_writes.hpp).
//
// A ChainCache belongs to one stream and its worker. It takes graphs out of the pool of the stream's context, green or not, when their shape is
// first needed and keeps them: no other stream launches them meanwhile, and no stream of another context ever does. To set a node to another function
// takes several times as long as to give it other parameters, and so does the launch behind it. So a stream whose worker is short of time may have
// several graphs of a short shape, and a run goes into the one that had the same functions.
// A driver that refuses a graph call gets plain launches from then on, in all streams (logged once).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "broker/executor/chains/chain_graph.hpp"
#include "broker/executor/chains/chain_pool.hpp"

namespace mpsshim::broker {

// What a stream may have of a shape.
enum class Graphs : std::uint8_t { one, several };

class ChainCache {
 public:
  ChainCache(ExecutorCore& core, ChainPool& pool) : core_(core), pool_(&pool) {}
  ChainCache(const ChainCache&) = delete;
  ~ChainCache() { clear(); }

  // Takes a graph of that shape from the pool, unless there is one here. False: there is none at the moment.
  [[nodiscard]] bool ensure(ChainShape shape);
  // Launches a chain of exactly `launches.size()` kernels, a length that chain_length() gives or 0, and the words behind them if there are
  // any (there are where always_has_words() says so). False: nothing was issued, issue it plainly.
  [[nodiscard]] bool launch(CUstream stream, std::span<const LaunchOp* const> launches, const WordWrites* words, Graphs allowed = Graphs::one);
  [[nodiscard]] ChainPool& pool() const { return *pool_; }
  // Gives all graphs back. One that is still running ends by itself.
  void clear();
  // Launches of a stream of another context come now.
  void move_to(ChainPool& pool);

 private:
  struct Shelf {  // of one shape
    std::vector<std::unique_ptr<ChainGraph>> graphs;
    unsigned misses = 0;  // runs of functions that none of them had
  };

  [[nodiscard]] ChainGraph& best_for(ChainShape shape, std::uint64_t functions, Graphs allowed);

  ExecutorCore& core_;
  ChainPool* pool_;
  std::array<Shelf, ChainShape::kShapes> shelves_;
  std::uint32_t random_ = 0;
};

}  // namespace mpsshim::broker
