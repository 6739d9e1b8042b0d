// SPDX-License-Identifier: Apache-2.0
//
// Runs the operations of all streams of the context. One instance per process, never destroyed: its workers may still
// run when static destructors do. Any thread may call; one mutex guards every queue, position and count, and no
// operation runs under it.
//
// A stream is an in-order queue. A busy stream has one worker thread at a time, taken from a pool that grows with the
// number of busy streams and shrinks when they are idle, so that a kernel which waits for its host, or for another stream, holds nobody else up.
// A place in a stream (its n-th operation) is a Position; events, the default stream's ordering and all waits of the
// host are expressed by positions, so there is one notion of "done".
//
// The first operation that fails ends the context, as on a GPU: nothing queued runs any more, every position counts as
// reached, and failure() is returned by every call from then on.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

class Stream;
using StreamPtr = std::shared_ptr<Stream>;

struct Position {
  StreamPtr stream;  // empty: a place that was always reached
  std::uint64_t sequence = 0;
};

struct Operation {
  // CUDA_SUCCESS: done. CUDA_ERROR_NOT_READY: ask again soon (a wait on a value). Anything else ends the context.
  std::function<CUresult()> run;
  std::vector<Position> after;
  bool is_launch = false;   // takes one of the stream's 1,021 places, and is held by a quiet window
  bool is_instant = false;  // so short that the submitting thread may run it when the stream is idle
};

class Scheduler {
 public:
  static constexpr unsigned kMaxLaunchesPerStream = 1021;  // measured on the hardware; the 1,022nd blocks its caller

  static Scheduler& get();

  // Appends to the stream. Blocks only for a launch: while the stream is full, or a quiet window is open.
  Position submit(const StreamPtr& stream, Operation operation);
  CUresult submit_and_wait(const StreamPtr& stream, Operation operation);

  bool reached(const Position& position);
  CUresult wait(const Position& position);
  // Of all streams, or of those that this default stream's context has.
  CUresult wait_for_everything(const Stream* default_stream = nullptr);
  Position last_of(const StreamPtr& stream);

  CUresult failure() const { return failure_.load(std::memory_order_acquire); }
  void fail(CUresult error);
  // Set once, by fail(): running kernels look at it and stop.
  const std::atomic<bool>& cancelled() const { return cancelled_; }

  // Marks that the calling thread touches device memory until the mark goes: a kernel or a copy.
  class Activity {
   public:
    explicit Activity(Scheduler& scheduler);
    ~Activity();
    Activity(const Activity&) = delete;
    Activity& operator=(const Activity&) = delete;

   private:
    Scheduler& scheduler_;
    std::uint64_t id_;
  };

  // What cuMemFree, cuModuleLoadData and their like do on a GPU: wait for all that runs at this moment and, unless
  // launches_pass, hold other threads' launch calls meanwhile. Does nothing with MPSSHIM_CPU_RELAXED=1.
  class QuietWindow {
   public:
    QuietWindow(Scheduler& scheduler, bool launches_pass);
    ~QuietWindow();
    QuietWindow(const QuietWindow&) = delete;
    QuietWindow& operator=(const QuietWindow&) = delete;

   private:
    Scheduler& scheduler_;
    bool holds_ = false;
  };

  // Waits for the end of windows that hold launches. Measured: while one thread's cuMemFree waits for a kernel, others wait not only in launches
  // but in copies and fills, in getting or registering memory (cuMemCreate excepted), and in making streams and events.
  void wait_for_windows();

  // Calls `release` when all that runs now has ended, at once if nothing does: memory must not vanish under a kernel.
  void when_quiet(std::function<void()> release);
  bool is_quiet();

 private:
  Scheduler() = default;
  void order_with_default_stream(const StreamPtr& stream, Operation& operation) REQUIRES(mutex_);
  bool is_ready(const Operation& operation) const;
  bool run_now(const StreamPtr& stream, Operation& operation) REQUIRES(mutex_);
  void complete_one(Stream& stream, bool was_launch) REQUIRES(mutex_);
  void wake_dependents(Stream& stream) REQUIRES(mutex_);
  void schedule(const StreamPtr& stream) REQUIRES(mutex_);
  void park_or_finish(const StreamPtr& stream) REQUIRES(mutex_);
  void work();
  void serve(const StreamPtr& stream) REQUIRES(mutex_);
  CUresult perform(const Operation& operation);
  std::vector<std::function<void()>> take_due_releases() REQUIRES(mutex_);

  Mutex mutex_;
  CondVar work_available_;
  CondVar progress_;  // a position reached, a launch allowed, an activity ended, the context failed
  std::deque<StreamPtr> runnable_ GUARDED_BY(mutex_);
  std::unordered_set<StreamPtr> busy_ GUARDED_BY(mutex_);  // streams with operations not yet done
  std::set<std::uint64_t> active_ GUARDED_BY(mutex_);      // ids of running kernels and copies, ascending in time
  std::vector<std::pair<std::uint64_t, std::function<void()>>> releases_ GUARDED_BY(mutex_);
  std::uint64_t next_activity_ GUARDED_BY(mutex_) = 1;
  unsigned idle_workers_ GUARDED_BY(mutex_) = 0;
  unsigned windows_holding_launches_ GUARDED_BY(mutex_) = 0;
  std::atomic<CUresult> failure_{CUDA_SUCCESS};
  std::atomic<bool> cancelled_{false};
};

}  // namespace mpsshim::cpudriver
