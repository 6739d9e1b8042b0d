// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chains/chain_pool.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "broker/executor/base/core.hpp"
#include "broker/executor/chains/scoped_context.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::chrono::microseconds kShareOfWindow{1'000};  // a graph takes 20 to 500 us

// Graphs of all shapes, beyond which none are made for streams that have one of the shape. Some 100 to 200 KiB of the GPU each
// (docs/experiments/2026-11-28-launches-gathered.md).
constexpr std::size_t kMostForSpares = 1'024;
constexpr std::size_t kMostForSparesInGreen = 64;

// How many of a shape the executor's context has at first.
std::size_t first_stock_of(ChainShape shape) {
  if (shape.length == 0) return 8;
  if (shape.length == 1) return shape.has_words ? 32 : 16;
  if (shape.length <= kLongestExactChain) return shape.has_words ? 4 : 2;
  return 8;
}

// For few streams, whose launches come singly or in short bursts, mostly with a fence behind them.
std::size_t stock_aside_of(ChainShape shape) {
  if (shape.length > kLongestExactChain) return 0;
  if (!shape.has_words) return shape.length <= 2 ? 2 : 0;
  return shape.length == 1 ? 8 : shape.length == 0 ? 4 : 2;
}

template <typename F>
void for_each_shape(F&& f) {
  for (std::size_t length = 0; length <= kMaxChain; length = chain_length(length < kLongestExactChain ? length + 1 : length * 2)) {
    if (!always_has_words(length)) f(ChainShape{length, false});
    f(ChainShape{length, true});
    if (length == kMaxChain) return;
  }
}

}  // namespace

ChainPool::ChainPool(ExecutorCore& core) : core_(core), issue_lock_(core.issue_lock), refused_(core.chains_refused) {}
ChainPool::ChainPool(ExecutorCore& core, CUcontext green, IssueLock& issue_lock, unsigned number)
    : core_(core), green_(green), side_(number), issue_lock_(issue_lock), refused_(own_refused_) {}

// A client's green context has streams of its session alone, and it is made while others wait.
std::size_t ChainPool::stock_of(ChainShape shape) const {
  if (core_.stress.stock != 0) return core_.stress.stock;
  if (green_ == nullptr) return first_stock_of(shape);
  if (side_ != 0) return stock_aside_of(shape);
  return shape.length <= 1 ? 2 : 0;
}

void ChainPool::stock() {
  for_each_shape([this](ChainShape shape) {
    mutex_.assume_held();  // nobody else knows the pool yet
    Shelf& shelf = shelves_[shape.index()];
    shelf.shape = shape;
    for (std::size_t i = stock_of(shape); i > 0 && !is_refused(); --i) {
      add(shelf, make(shape));
    }
  });
}

void ChainPool::make_again(std::size_t shape_index) {
  if (shape_index >= ChainShape::kShapes || is_refused()) return;
  std::lock_guard lock(mutex_);
  std::unique_ptr<ChainGraph> chain = make(shelves_[shape_index].shape);
  add(shelves_[shape_index], std::move(chain));
}

std::unique_ptr<ChainGraph> ChainPool::take(ChainShape shape) {
  std::lock_guard lock(mutex_);
  Shelf& shelf = shelves_[shape.index()];
  std::unique_ptr<ChainGraph> chain;
  if (!shelf.free.empty()) {
    chain = std::move(shelf.free.back());
    shelf.free.pop_back();
  }
  if (!chain) core_.stress.graphs_missed.fetch_add(1, std::memory_order_relaxed);
  if (shelf.free.size() < stock_of(shape) / 4 || !chain) want_more(shelf);
  return chain;
}

std::unique_ptr<ChainGraph> ChainPool::take_spare(ChainShape shape) {
  const std::lock_guard lock(mutex_);
  Shelf& shelf = shelves_[shape.index()];
  if (shelf.free.size() <= stock_of(shape) / 2) {
    if (made_ < (green_ == nullptr ? kMostForSpares : kMostForSparesInGreen)) want_more(shelf);
    return nullptr;
  }
  std::unique_ptr<ChainGraph> chain = std::move(shelf.free.back());
  shelf.free.pop_back();
  return chain;
}

void ChainPool::give_back(std::unique_ptr<ChainGraph> chain) {
  {
    const ScopedContext current(core_.driver, green_, issue_lock_);
    chain->clear();
  }
  std::lock_guard lock(mutex_);
  shelves_[chain->shape().index()].free.push_back(std::move(chain));
}

void ChainPool::want_more(Shelf& shelf) {
  if (core_.stress.stock != 0 && shelf.made >= core_.stress.stock) return;
  if (shelf.wanted == 0) shelf.wanted = std::max({stock_of(shelf.shape), shelf.made / 2, std::size_t{1}});
  if (std::exchange(is_asked_, true)) return;
  WindowJob job{"making graphs for launches", 0, true, [this, keeper = keeper_.lock()](WindowResult) { make_wanted(); }};
  job.presses = true;
  core_.window.submit(std::move(job));
}

void ChainPool::make_wanted() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  is_asked_ = false;
  for (Shelf& shelf : shelves_) {
    while (shelf.wanted > 0 && !is_refused()) {
      if (std::chrono::steady_clock::now() - start > kShareOfWindow) return want_more(shelf);
      const ChainShape shape = shelf.shape;
      lock.unlock();
      std::unique_ptr<ChainGraph> chain;
      {
        const bool is_logged = green_ == nullptr || side_ != 0;
        const LogEntry entry{side_, static_cast<std::uint32_t>(shape.index())};
        const auto in_order = is_logged ? core_.control.note(LogKind::graph, entry.packed()) : ControlLink::InOrder();
        chain = make(shape);
      }
      lock.lock();
      --shelf.wanted;
      add(shelf, std::move(chain));
    }
  }
}

void ChainPool::add(Shelf& shelf, std::unique_ptr<ChainGraph> chain) {
  if (!chain) return;  // refused, which was logged
  shelf.free.push_back(std::move(chain));
  ++shelf.made;
  ++made_;
}

std::unique_ptr<ChainGraph> ChainPool::make(ChainShape shape) {
  CUresult error = CUDA_SUCCESS;
  const char* call = nullptr;
  std::unique_ptr<ChainGraph> chain;
  {
    const ScopedContext current(core_.driver, green_, issue_lock_);
    chain = ChainGraph::make(core_, shape, error, call);
  }
  if (!chain) refuse(error, call);
  return chain;
}

void ChainPool::refuse(CUresult result, const char* call) {
  if (is_fatal(result)) return;  // no refusal: the context is lost, which the plain launch that follows reports
  if (refused_.exchange(true, std::memory_order_relaxed)) return;
  log_warning("Launches{} are issued one by one from now on, not in chains: the driver refused {}: {}",
              green_ == nullptr ? "" : " in a green context", call, core_.driver.describe(result));
}

}  // namespace mpsshim::broker
