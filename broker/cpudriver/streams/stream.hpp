// SPDX-License-Identifier: Apache-2.0
//
// A stream: identity and flags for the API, queue and positions for the Scheduler, which alone touches them (under its
// mutex). Shared ownership: the handle table, the scheduler while the stream is busy, and events that name a place in it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "broker/cpudriver/streams/scheduler.hpp"

namespace mpsshim::cpudriver {

class GreenContext;

class Stream {
 public:
  enum class Kind { ordinary, null_stream };

  // `green`: the context whose multiprocessors it has, and then the stream is non-blocking, whatever the flags (as on an H200); null: the primary.
  Stream(Kind kind, unsigned flags, int priority, const std::shared_ptr<GreenContext>& green = nullptr);

  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }
  std::uint64_t id() const { return id_; }
  // The primary context's NULL stream, and what is ordered with it: nothing of a green context.
  bool is_legacy_default() const { return kind_ == Kind::null_stream && !is_green_; }
  bool is_blocking() const { return kind_ == Kind::ordinary && (flags_ & CU_STREAM_NON_BLOCKING) == 0; }

  std::shared_ptr<GreenContext> green() const { return green_.lock(); }
  // Its green context has been destroyed.
  bool is_orphan() const { return is_green_ && green_.expired(); }
  // The NULL stream of its context.
  const Stream* default_stream() const { return kind_ == Kind::null_stream ? this : default_stream_.get(); }

  CUstream handle() { return reinterpret_cast<CUstream>(this); }

  // The context's NULL stream, and the calling thread's own default stream (CU_STREAM_PER_THREAD).
  static const StreamPtr& legacy_default();
  static const StreamPtr& per_thread_default();

 private:
  friend class Scheduler;

  const Kind kind_;
  const unsigned flags_;
  const int priority_;
  const std::uint64_t id_;
  const bool is_green_;
  const std::weak_ptr<GreenContext> green_;
  const StreamPtr default_stream_;  // null in a NULL stream

  std::deque<Operation> queue_;
  std::uint64_t submitted_ = 0;
  std::uint64_t completed_ = 0;
  unsigned launches_ = 0;
  bool has_worker_ = false;            // scheduled, running or run by its submitter
  std::vector<StreamPtr> dependents_;  // streams whose first operation waits for a place in this one
};

}  // namespace mpsshim::cpudriver
