// SPDX-License-Identifier: Apache-2.0
// A green context of all the multiprocessors, for one worker to launch in. The driver's lock is a context's: threads that hand work to one context
// hold each other up, threads that hand it to green contexts of their own do not (docs/experiments/2026-11-22-side-contexts.md). The first worker has
// the executor's context, the next ones may have a side context each (mpsbroker --side-contexts). Sessions that wait after every few launches have
// their streams there once there are more of them than one worker serves well (worker_placement.hpp); their kernels run beside all others as before.
// Memory, functions, faults, and what waits for every kernel, are the one context's.
//
// All are made in a quiet window when such sessions first crowd, and stay: each makes everybody's chains of dependent kernels some percent slower,
// used or not. Their streams, and a stock of graphs, are made along with them: these take device memory, so they have a place in the load log.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/issue_lock.hpp"
#include "broker/executor/chains/chain_pool.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

struct ExecutorCore;

class SideContext;

// A stream that a queue has of a side context, until this goes. Then it is idle.
class SideStream {
 public:
  SideStream(SideContext& context, CUstream handle) : context_(context), handle_(handle) {}
  SideStream(const SideStream&) = delete;
  ~SideStream();
  [[nodiscard]] SideContext& context() const { return context_; }
  [[nodiscard]] CUstream handle() const { return handle_; }

 private:
  SideContext& context_;
  const CUstream handle_;
};

class SideContext {
 public:
  static constexpr unsigned kStreams = 8;

  // nullptr, which is logged: the driver refuses something, as those before 12.4 do. `number` counts from 1. Nothing runs yet.
  [[nodiscard]] static std::unique_ptr<SideContext> make(ExecutorCore& core, unsigned number);
  SideContext(const SideContext&) = delete;

  // Null: none is left. Of priority 0.
  [[nodiscard]] std::unique_ptr<SideStream> take();
  [[nodiscard]] std::size_t free_streams();
  [[nodiscard]] ChainPool& chains() { return *chains_; }

 private:
  friend class SideStream;
  SideContext() = default;
  [[nodiscard]] CUresult open(ExecutorCore& core, unsigned number, const char*& call);
  [[nodiscard]] CUresult warm_up(ExecutorCore& core);
  void end(const Driver& driver);  // of one that could not be opened

  CUgreenCtx handle_ = nullptr;  // goes with the process
  CUcontext context_ = nullptr;
  IssueLock issue_lock_;
  std::unique_ptr<ChainPool> chains_;
  Mutex mutex_;
  std::vector<CUstream> free_ GUARDED_BY(mutex_);
};

// The executor's. Any thread, but for make_up_to().
class SideContexts {
 public:
  explicit SideContexts(ExecutorCore& core) : core_(core) {}
  SideContexts(const SideContexts&) = delete;

  // So many are there, which is none until all are; it does not become less.
  [[nodiscard]] std::size_t count() const { return count_.load(std::memory_order_acquire); }
  // From 0; the worker behind the first has the first.
  [[nodiscard]] SideContext& operator[](std::size_t index) const { return *contexts_[index]; }
  // Has ExecutorCore::side_contexts of them made, for the first who asks: each in a quiet window of its own, since nobody can launch meanwhile,
  // and none is held for it before a second has gone by.
  void want();
  // Until there are so many, or the driver refuses. In a quiet window, or where the load log says so while nothing runs yet.
  void make_up_to(std::size_t count);

 private:
  void make_next_in_window();
  [[nodiscard]] bool is_complete() const;

  ExecutorCore& core_;
  std::vector<std::unique_ptr<SideContext>> contexts_;  // has room for all before the first is counted
  std::atomic<std::size_t> count_{0};
  bool refused_ = false;
  std::atomic<bool> wanted_{false};
};

}  // namespace mpsshim::broker
