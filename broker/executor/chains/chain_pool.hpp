// SPDX-License-Identifier: Apache-2.0
// The prepared graphs of a context, shared by its streams: the executor's one context has a pool, each side context and each green context of a
// client's, since a graph runs where its nodes were added. Instantiating a graph may take device memory, and then the driver waits for
// every running kernel of the context and holds all other calls meanwhile (docs/experiments/2026-11-21-hardware-connections.md). So graphs are made
// before the executor serves anybody and in quiet windows, never when one is wanted: who finds none issues plainly and has more made.
//
// Threads: workers take and give back; the window's thread makes more.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "broker/executor/base/issue_lock.hpp"
#include "broker/executor/chains/chain_graph.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class ChainPool {
 public:
  // What the load log says of a graph: which pool's, and its shape.
  struct LogEntry {
    unsigned pool = 0;  // 0: the executor's context, otherwise a side context's number
    std::uint32_t shape_index = 0;
    [[nodiscard]] std::uint64_t packed() const { return std::uint64_t{pool} << 32 | shape_index; }
    [[nodiscard]] static LogEntry unpacked(std::uint64_t value) { return {static_cast<unsigned>(value >> 32), static_cast<std::uint32_t>(value)}; }
  };

  // Of the executor's context. A driver that refuses graphs gets plain launches from then on (ExecutorCore::chains_refused).
  explicit ChainPool(ExecutorCore& core);
  // Of a green context, as a CUcontext, and that one's lock. Refusals are this pool's alone. Of a client's: graphs are made when asked for, but
  // for a few. Of side context `number`, from 1: see there.
  ChainPool(ExecutorCore& core, CUcontext green, IssueLock& issue_lock, unsigned number = 0);
  ChainPool(const ChainPool&) = delete;
  // Who is kept while a window makes graphs for this pool. Of a green context.
  void set_keeper(std::weak_ptr<void> keeper) { keeper_ = std::move(keeper); }

  // Makes the first stock. Called once, nothing runs yet.
  void stock();
  // One more of a shape, as a new life does what the load log says; nothing runs yet.
  void make_again(std::size_t shape_index);
  // Null: there is none of that shape at the moment.
  [[nodiscard]] std::unique_ptr<ChainGraph> take(ChainShape shape);
  // One more for a stream that has one of that shape. Null: what there is is for those that have none, or there are as many as there may be.
  [[nodiscard]] std::unique_ptr<ChainGraph> take_spare(ChainShape shape);
  // It may still be running: what is set for its next launch does not touch that.
  void give_back(std::unique_ptr<ChainGraph> chain);
  // The driver refused a graph call that chains need.
  void refuse(CUresult result, const char* call);
  // To be current where its graphs are filled; null: the executor's context, which is.
  [[nodiscard]] CUcontext green() const { return green_; }
  [[nodiscard]] IssueLock& issue_lock() const { return issue_lock_; }
  [[nodiscard]] bool is_refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  struct Shelf {
    ChainShape shape;
    std::vector<std::unique_ptr<ChainGraph>> free;
    std::size_t made = 0;
    std::size_t wanted = 0;  // to be made in the next window
  };

  void want_more(Shelf& shelf) REQUIRES(mutex_);
  void make_wanted();  // in a quiet window
  [[nodiscard]] std::size_t stock_of(ChainShape shape) const;
  [[nodiscard]] std::unique_ptr<ChainGraph> make(ChainShape shape);
  void add(Shelf& shelf, std::unique_ptr<ChainGraph> chain) REQUIRES(mutex_);

  ExecutorCore& core_;
  const CUcontext green_ = nullptr;  // null: the executor's context, which is current everywhere
  const unsigned side_ = 0;          // the number of the side context; 0: it is none
  IssueLock& issue_lock_;            // of that context
  std::weak_ptr<void> keeper_;       // set before it is used
  std::atomic<bool> own_refused_{false};
  std::atomic<bool>& refused_;
  Mutex mutex_;
  std::array<Shelf, ChainShape::kShapes> shelves_ GUARDED_BY(mutex_);
  std::size_t made_ GUARDED_BY(mutex_) = 0;   // of all shapes
  bool is_asked_ GUARDED_BY(mutex_) = false;  // a window for make_wanted()
};

}  // namespace mpsshim::broker
