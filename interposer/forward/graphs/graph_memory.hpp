// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate (CUDA Programming Guide, "Graph Memory Nodes"). A block belongs to its graph from the moment the node is added: the
// address holds for the graph's life, so allocating and freeing are no work for the executor, and nodes of that kind are empty there. Within one
// graph a block that is freed is given to later allocations that come behind the free in the graph's order; between graphs nothing is shared.
//
// *Unfreed* is a block whose last allocation was launched and not freed since, by a graph or by the application; it outlives its graphs.
// Any thread. Blocks are given back to DeviceMemory by reap(), since nobody may wait for streams where references end.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

// What works of nodes hold.
class GraphBlock {
 public:
  explicit GraphBlock(AddressRange range) : range_(range) {}
  ~GraphBlock();
  GraphBlock(const GraphBlock&) = delete;
  GraphBlock& operator=(const GraphBlock&) = delete;
  [[nodiscard]] const AddressRange& range() const { return range_; }

 private:
  const AddressRange range_;
};
using BlockRef = std::shared_ptr<GraphBlock>;

// What one launch of an executable graph does, as seen from outside.
struct GraphMemoryUse {
  std::vector<BlockRef> blocks;   // all of them
  std::vector<BlockRef> leaves;   // unfreed when the graph has run
  std::vector<BlockRef> expects;  // freed by the graph, allocated by another
};

class GraphMemory {
 public:
  [[nodiscard]] static GraphMemory& instance();

  [[nodiscard]] CUresult allocate(std::uint64_t bytes, BlockRef& block);
  // Whether `address` lies in a block, in use or not.
  [[nodiscard]] bool holds(std::uint64_t address) const;
  // The block that begins there.
  [[nodiscard]] BlockRef find(std::uint64_t address) const;

  // By the application, in the stream's order, or at once where there is none and its work has ended. CUDA_ERROR_INVALID_VALUE: no unfreed
  // block begins there.
  [[nodiscard]] CUresult free(std::uint64_t address, Stream* stream);
  // In front of a launch. CUDA_ERROR_INVALID_VALUE: a block that it allocates is unfreed (and not to be freed by the launch), or one that it
  // frees is not.
  [[nodiscard]] CUresult begin_launch(const GraphMemoryUse& use, bool frees_first, Stream& stream);

  [[nodiscard]] CUresult get_attribute(CUgraphMem_attribute attribute, cuuint64_t& value);
  [[nodiscard]] CUresult set_attribute(CUgraphMem_attribute attribute, cuuint64_t value);
  // Gives back what no graph holds and nobody uses. Waits for this process's streams if there is any.
  void reap();

 private:
  friend class GraphBlock;
  struct State {
    std::uint64_t size_bytes = 0;
    std::weak_ptr<GraphBlock> block;
    bool is_held = true;
    bool is_unfreed = false;
    Event* freed = nullptr;  // recorded where the application freed it last
  };
  void let_go(std::uint64_t address);
  [[nodiscard]] std::map<std::uint64_t, State>::const_iterator at(std::uint64_t address) const REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::uint64_t, State> blocks_ GUARDED_BY(mutex_);  // by address
  cuuint64_t total_bytes_ GUARDED_BY(mutex_) = 0;
  cuuint64_t high_bytes_ GUARDED_BY(mutex_) = 0;
  std::atomic<bool> has_been_used_{false};  // others pay one load for each pointer
};

}  // namespace mpsshim::interposer::forward
