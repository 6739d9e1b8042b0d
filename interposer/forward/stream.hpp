// SPDX-License-Identifier: Apache-2.0
// One stream of this process. It counts fence values, which are given under the channel's lock, in the order of the records: so a value stands for
// everything posted before it on that stream. Owned by Streams (streams.hpp), which says how long one lives and who may use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/channel/recipe_book.hpp"
#include "proto/ids.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

// What a stream's word is waited for.
// Without initial values: a thousand of them are on the stack in each call that waits, of which few are filled.
struct FenceTarget {
  std::uint32_t word;
  std::uint32_t value;
};

// What a stream is made as.
struct StreamShape {
  std::uint32_t flags = 0;
  int priority = 0;
  CUcontext context = nullptr;    // null: of no context
  proto::GreenContextId green{};  // {}: of none
  bool is_null_stream = false;    // that green context's own
};

struct Stream {
  proto::StreamId id;
  std::uint32_t word = 0;  // its fence word: the id's index
  // Work was posted after the last fence value. Written under the channel's lock; a stale read costs a needless fence or finds the
  // stream as it was before another thread's call, which is what the application could have seen anyway.
  std::atomic<bool> has_work{false};
  // Of that, work whose end the host can notice: all but copies that only read this process's staging memory and write device memory.
  // visible_fence is the last value with such work in front of it. Written as has_work.
  std::atomic<bool> has_visible_work{false};
  std::atomic<std::uint32_t> visible_fence{0};
  // Of that, what may use managed memory that migrates; managed_fence is the last value with such work in front of it. What stands behind a host
  // function is not such work, so the function may touch what the work in front of it used. Written as has_work.
  std::atomic<bool> has_managed_work{false};
  std::atomic<std::uint32_t> managed_fence{0};
  // It captures (graphs/capture.hpp), or it is the NULL stream and one captures that it is ordered with: nothing is posted then.
  std::atomic<bool> is_captured{false};
  bool is_blocking = true;  // ordered with NULL streams; none of a green context is
  std::uint32_t flags = 0;
  int priority = 0;
  std::uint64_t unique_id = 0;  // never reused in this process
  CUcontext context = nullptr;
  proto::GreenContextId green{};  // whose multiprocessors it has; {}: the whole device's
  bool is_null_stream = false;    // the session's, or a green context's
  RecipeBook::Key recipe = 0;

  [[nodiscard]] bool is_legacy_default() const { return id == proto::kNullStream; }
  // That one, or the NULL stream of a context with a part of the multiprocessors: it comes behind all blocking streams.
  [[nodiscard]] bool is_behind_blocking() const { return is_null_stream && is_blocking; }

  // cuStreamSetAttribute: launch_attributes.hpp.
  std::atomic<bool> has_launch_attributes{false};
  std::atomic<std::uint32_t> sync_policy{UINT32_MAX};  // how to wait for this stream; the first value, which is told as it is, is none
  Mutex attributes_mutex;
  std::vector<CUlaunchAttribute> launch_attributes GUARDED_BY(attributes_mutex);
};

// Gives the stream's next fence value. Under the channel's lock.
[[nodiscard]] std::uint32_t next_fence(Stream& stream);

}  // namespace mpsshim::interposer::forward
