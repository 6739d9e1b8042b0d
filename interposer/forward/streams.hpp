// SPDX-License-Identifier: Apache-2.0
// The streams of this process (stream.hpp), and what is posted on them. A stream whose last record was a fence (or an event record, which is one) is
// synchronised by waiting for that value alone; otherwise a fence is posted first.
//
// Any thread. A Stream lives until its handle is destroyed; CUDA forbids using a handle meanwhile. Who takes streams from live_ or from a word
// has not got them from the program, which may destroy one at any moment: they are used under mutex_, or named by id. Legacy order (the NULL stream
// and the blocking streams) is made by the executor on the GPU's side; here, synchronising the NULL stream waits for the blocking ones too.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/forward/stream.hpp"
#include "proto/handle_table.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class Streams {
 public:
  [[nodiscard]] static Streams& instance();

  // The stream behind a handle: 0 and CU_STREAM_LEGACY are the NULL stream of the current context, CU_STREAM_PER_THREAD the calling thread's
  // own (made at its first use; green contexts have none). Null if the handle is none, or could not be made. The session is open.
  [[nodiscard]] Stream* resolve(CUstream handle) {
    if (handle == nullptr || handle == CU_STREAM_LEGACY) return null_stream();
    if (handle == CU_STREAM_PER_THREAD) return per_thread();
    return table_.find(proto::StreamId{reinterpret_cast<std::uintptr_t>(handle)}).get();
  }
  // What a call is told whose handle is none: the stream may have ended with its green context.
  [[nodiscard]] CUresult missing(CUstream handle);
  // The stream of calls that name none: the NULL stream, or the thread's own in _ptds variants.
  [[nodiscard]] Stream* default_stream();

  // The session's NULL stream, whatever context is current.
  [[nodiscard]] Stream* legacy_default();

  [[nodiscard]] CUresult create(std::uint32_t flags, int priority, CUcontext context, Stream*& stream) {
    return create(StreamShape{flags, priority, context, {}, false}, stream);
  }
  [[nodiscard]] CUresult create(const StreamShape& shape, Stream*& stream);
  // CUDA_ERROR_INVALID_HANDLE: there is none, or another thread was faster.
  [[nodiscard]] CUresult destroy(proto::StreamId id);

  // Posts a fence if there is work after the last; `target` is the value that covers all work so far.
  [[nodiscard]] CUresult fence(Stream& stream, std::uint32_t& target);
  // The same of a stream that another thread may be destroying. One that has ended has written its last fence; `target` stays as it is.
  [[nodiscard]] CUresult fence_of(proto::StreamId id, std::uint32_t& target);
  using Target = FenceTarget;
  // Adds what has not been reached of the work that may use managed memory (Stream::has_managed_work), of one stream or ({}) of all. Posts fences
  // where there are none.
  [[nodiscard]] CUresult fence_managed(proto::StreamId id, std::vector<Target>& targets);
  // Whether all that the session has posted so far has ended. Does not wait.
  [[nodiscard]] CUresult look_at_all(bool& have_ended);
  // f(Stream*), null if it has ended; it does not end meanwhile.
  template <typename F>
  auto with(proto::StreamId id, F&& f) {
    const std::lock_guard lock(mutex_);
    return f(named(id));
  }
  [[nodiscard]] CUresult synchronize(Stream& stream);
  // Waits for what was posted on this stream alone, also where it is the NULL stream. `expected_us`: how long that will take, 0 if nobody knows.
  [[nodiscard]] CUresult wait_for_own_work(Stream& stream, std::uint64_t expected_us = 0);
  // As synchronize(), but does not wait for uploads behind which nothing was posted: what a synchronous upload does first.
  [[nodiscard]] CUresult synchronize_visible(Stream& stream);
  // CUDA_ERROR_NOT_READY while work is pending.
  [[nodiscard]] CUresult query(Stream& stream);
  [[nodiscard]] CUresult synchronize_all();
  [[nodiscard]] CUresult synchronize_all_of(proto::GreenContextId green);
  void destroy_all_of(CUcontext context);
  // The streams of a green context end; their handles stay known.
  void orphan_all_of(proto::GreenContextId green);

 private:
  enum class Which : std::uint8_t { all, blocking, green };
  using Targets = std::array<Target, proto::kFenceWords>;
  struct Retiring {
    std::uint32_t word;
    std::uint32_t value;
  };

  [[nodiscard]] CUresult fence_managed(Stream& stream, Target& target);
  [[nodiscard]] Stream* null_stream();
  // As records name it: the NULL stream of every session has one name.
  [[nodiscard]] Stream* named(proto::StreamId id) const {
    return id == proto::kNullStream ? null_.load(std::memory_order_acquire) : table_.find(id).get();
  }
  [[nodiscard]] Stream* per_thread();
  // A fence behind the stream's visible work; true if it has not been reached, `target` is its value then.
  [[nodiscard]] CUresult fence_visible(Stream& stream, Target& target, bool& is_pending);
  // `blocking`: the session's NULL stream and those that are ordered with it; `green`: all of that context.
  [[nodiscard]] CUresult fence_many(Which which, proto::GreenContextId green, Targets& targets, std::size_t& count);
  [[nodiscard]] CUresult post_create(Stream& stream);
  [[nodiscard]] CUresult wait_many(const Targets& targets, std::size_t count) { return wait_many(targets, count, Wait::style_of_thread()); }
  [[nodiscard]] CUresult wait_many(const Targets& targets, std::size_t count, WaitPlan plan);
  void reuse_retired() REQUIRES(mutex_);
  // Until a fence word is free: waits for a destroyed stream's work where all are taken. CUDA_ERROR_OUT_OF_MEMORY: all are in use.
  [[nodiscard]] CUresult wait_for_word() REQUIRES(mutex_);

  proto::HandleTable<proto::HandleKind::stream, Stream> table_{ActingSession::index()};
  std::atomic<Stream*> null_{nullptr};
  Mutex ending_mutex_;  // one stream ends at a time; taken before the graphs' mutex, which is taken before mutex_
  Mutex mutex_;         // live_, retiring_ and orphans_
  std::vector<Stream*> live_ GUARDED_BY(mutex_);
  std::vector<Retiring> retiring_ GUARDED_BY(mutex_);              // destroyed; the index is free once the last value has been written
  std::unordered_set<std::uintptr_t> orphans_ GUARDED_BY(mutex_);  // handles of streams whose green context is gone
};

// What becomes of a record of work whose stream captures: a node, or CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. In graphs/capture.cpp.
[[nodiscard]] CUresult capture_post(Stream& stream, proto::RecordId id, std::span<const std::byte> body, std::span<const std::byte> trailing);

template <typename Record, typename Fill>
[[nodiscard, gnu::noinline]] CUresult capture_work(Stream& stream, std::size_t trailing_bytes, Fill&& fill) {
  Record record{};
  std::vector<std::byte> trailing(trailing_bytes);
  fill(record, trailing.data());
  return capture_post(stream, Record::kId, std::as_bytes(std::span(&record, 1)), trailing);
}

// Work while there is managed memory that migrates. `post` posts it.
template <typename Post>
[[nodiscard, gnu::noinline]] CUresult behind_managed_memory(Stream& stream, Post&& post) {
  const ManagedMemory::Work work(stream);
  const CUresult error = work.error() == CUDA_SUCCESS ? post() : work.error();
  stream.has_managed_work.store(true, std::memory_order_release);  // before a touch can count this as posted: pairs with fence_managed()
  return error;
}

// Posts a record of work on `stream`, or captures it.
template <typename Record, typename Fill>
[[nodiscard]] CUresult post_work(Stream& stream, std::size_t trailing_bytes, Fill&& fill) {
  if (stream.is_captured.load(std::memory_order_relaxed)) [[unlikely]]
    return capture_work<Record>(stream, trailing_bytes, std::forward<Fill>(fill));
  const auto post = [&] {
    return session().channel().post<Record>(stream.id, trailing_bytes, [&](Record& record, std::byte* trailing, Place) {
      fill(record, trailing);
      stream.has_work.store(true, std::memory_order_relaxed);
      stream.has_visible_work.store(true, std::memory_order_relaxed);
    });
  };
  if (ManagedMemory::in_use()) [[unlikely]]
    return behind_managed_memory(stream, post);
  return post();
}

// Posts a copy from staging memory to device memory; `fill` as above.
template <typename Record, typename Fill>
[[nodiscard]] CUresult post_upload(Stream& stream, Fill&& fill) {
  // Its source is gone by the time a graph is launched.
  if (stream.is_captured.load(std::memory_order_relaxed)) [[unlikely]]
    return capture_post(stream, Record::kId, {}, {});
  const auto post = [&] {
    return session().channel().post<Record>(stream.id, 0, [&](Record& record, std::byte* trailing, Place) {
      fill(record, trailing);
      stream.has_work.store(true, std::memory_order_relaxed);
    });
  };
  if (ManagedMemory::in_use()) [[unlikely]]
    return behind_managed_memory(stream, post);
  return post();
}

}  // namespace mpsshim::interposer::forward
