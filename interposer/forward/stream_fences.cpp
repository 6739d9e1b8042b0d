// SPDX-License-Identifier: Apache-2.0
// Fences of streams, and who waits for them.
#include <algorithm>

#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/forward/streams.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

WaitStyle wait_style(const Stream& stream) {
  switch (stream.sync_policy.load(std::memory_order_relaxed)) {
    case CU_SYNC_POLICY_SPIN: return WaitStyle::spin;
    case CU_SYNC_POLICY_YIELD: return WaitStyle::yield;
    case CU_SYNC_POLICY_BLOCKING_SYNC: return WaitStyle::sleep;
    default: return Wait::style_of_thread();
  }
}

}  // namespace

std::uint32_t next_fence(Stream& stream) {
  std::atomic<std::uint32_t>& posted = session().fences().posted(stream.word);
  std::uint32_t value = posted.load(std::memory_order_relaxed) + 1;
  if (value == 0) value = 1;  // 0 means "no fence" to recovery
  posted.store(value, std::memory_order_release);
  session().fences().know_of_owed(stream.word);
  stream.has_work.store(false, std::memory_order_release);  // who sees this sees the value: pairs with fence()
  if (stream.has_visible_work.load(std::memory_order_relaxed)) {
    stream.visible_fence.store(value, std::memory_order_relaxed);
    stream.has_visible_work.store(false, std::memory_order_release);  // who sees this sees the fence: pairs with fence_visible()
  } else if (const std::uint32_t last = stream.visible_fence.load(std::memory_order_relaxed);
             last != 0 && session().fences().reached(stream.word, last)) {
    stream.visible_fence.store(0, std::memory_order_relaxed);  // values wrap: one long past must not look like one to come
  }
  if (stream.has_managed_work.load(std::memory_order_relaxed)) {
    stream.managed_fence.store(value, std::memory_order_relaxed);
    stream.has_managed_work.store(false, std::memory_order_release);  // who sees this sees the fence: pairs with fence_managed()
  } else if (const std::uint32_t last = stream.managed_fence.load(std::memory_order_relaxed);
             last != 0 && session().fences().reached(stream.word, last)) {
    stream.managed_fence.store(0, std::memory_order_relaxed);  // as above
  }
  return value;
}

CUresult Streams::fence(Stream& stream, std::uint32_t& target) {
  if (stream.has_work.load(std::memory_order_acquire)) {
    return session().channel().post<proto::FenceRecord>(
        stream.id, 0, [&](proto::FenceRecord& record, std::byte*, Place) { target = record.fence_value = next_fence(stream); });
  }
  target = session().fences().posted(stream.word).load(std::memory_order_acquire);
  return CUDA_SUCCESS;
}

CUresult Streams::fence_of(proto::StreamId id, std::uint32_t& target) {
  const std::lock_guard lock(mutex_);
  Stream* const stream = named(id);
  return stream != nullptr ? fence(*stream, target) : CUDA_SUCCESS;
}

CUresult Streams::fence_managed(Stream& stream, Target& target) {
  if (stream.has_managed_work.load(std::memory_order_acquire)) {
    std::uint32_t covered = 0;
    if (const CUresult error = fence(stream, covered); error != CUDA_SUCCESS) return error;
  }
  target = {stream.word, stream.managed_fence.load(std::memory_order_relaxed)};
  if (target.value != 0 && session().fences().reached(target.word, target.value)) target.value = 0;
  return CUDA_SUCCESS;
}

CUresult Streams::fence_managed(proto::StreamId id, std::vector<Target>& targets) {
  const std::lock_guard lock(mutex_);
  const auto visit = [&](Stream& stream) {
    Target target{};
    const CUresult error = fence_managed(stream, target);
    if (error == CUDA_SUCCESS && target.value != 0) targets.push_back(target);
    return error;
  };
  if (id != proto::StreamId{}) {
    Stream* const stream = named(id);
    return stream != nullptr ? visit(*stream) : CUDA_SUCCESS;
  }
  for (Stream* stream : live_) {
    if (const CUresult error = visit(*stream); error != CUDA_SUCCESS) return error;
  }
  for (const Retiring& retired : retiring_) {
    if (!session().fences().reached(retired.word, retired.value)) targets.push_back({retired.word, retired.value});
  }
  return CUDA_SUCCESS;
}

CUresult Streams::fence_many(Which which, proto::GreenContextId green, Targets& targets, std::size_t& count) {
  const std::lock_guard lock(mutex_);
  count = 0;
  for (Stream* stream : live_) {
    if (which == Which::blocking && !stream->is_blocking) continue;
    if (which == Which::green && stream->green != green) continue;
    std::uint32_t value = 0;
    if (const CUresult error = fence(*stream, value); error != CUDA_SUCCESS) return error;
    if (session().fences().reached(stream->word, value)) continue;
    targets[count++] = {stream->word, value};
  }
  if (which != Which::all) return CUDA_SUCCESS;
  for (const Retiring& retired : retiring_) {  // destroyed streams finish their work
    if (count < targets.size() && !session().fences().reached(retired.word, retired.value)) targets[count++] = {retired.word, retired.value};
  }
  return CUDA_SUCCESS;
}

CUresult Streams::look_at_all(bool& have_ended) {
  Targets targets;  // NOLINT: filled up to `count`
  std::size_t count = 0;
  const CUresult error = fence_many(Which::all, {}, targets, count);
  have_ended = count == 0;
  return error;
}

// With nothing to wait for, the session may have ended all the same.
CUresult Streams::wait_many(const Targets& targets, std::size_t count, WaitPlan plan) {
  if (count == 0) {
    if (const CUresult error = session().look(); error != CUDA_SUCCESS) return error;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const CUresult error = session().wait_fence(targets[i].word, targets[i].value, "a stream's work", plan);
    if (error != CUDA_SUCCESS) return error;
  }
  MemoryPools::instance().after_synchronize();
  session().take_output();
  return session().take_error();
}

CUresult Streams::synchronize(Stream& stream) {
  if (stream.is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(stream);
  if (stream.is_behind_blocking()) {
    Targets targets;  // NOLINT: filled up to `count`
    std::size_t count = 0;
    if (const CUresult error = fence_many(Which::blocking, {}, targets, count); error != CUDA_SUCCESS) return error;
    return wait_many(targets, count);
  }
  return wait_for_own_work(stream);
}

CUresult Streams::wait_for_own_work(Stream& stream, std::uint64_t expected_us) {
  std::uint32_t target = 0;
  if (const CUresult error = fence(stream, target); error != CUDA_SUCCESS) return error;
  Targets targets;  // NOLINT: one is filled
  targets[0] = {stream.word, target};
  return wait_many(targets, session().fences().reached(stream.word, target) ? 0 : 1, WaitPlan(wait_style(stream), expected_us));
}

CUresult Streams::fence_visible(Stream& stream, Target& target, bool& is_pending) {
  if (stream.has_visible_work.load(std::memory_order_acquire)) {
    std::uint32_t covered = 0;
    if (const CUresult error = fence(stream, covered); error != CUDA_SUCCESS) return error;
  }
  target = {stream.word, stream.visible_fence.load(std::memory_order_relaxed)};
  is_pending = target.value != 0 && !session().fences().reached(target.word, target.value);
  return CUDA_SUCCESS;
}

CUresult Streams::synchronize_visible(Stream& stream) {
  if (stream.is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(stream);
  Targets targets;  // NOLINT: filled up to `count`
  std::size_t count = 0;
  bool is_pending = false;
  if (!stream.is_behind_blocking()) {
    if (const CUresult error = fence_visible(stream, targets[0], is_pending); error != CUDA_SUCCESS) return error;
    return is_pending ? wait_many(targets, 1) : session().kernel_error();
  }
  {
    const std::lock_guard lock(mutex_);
    for (Stream* live : live_) {
      if (!live->is_blocking) continue;
      if (const CUresult error = fence_visible(*live, targets[count], is_pending); error != CUDA_SUCCESS) return error;
      if (is_pending) ++count;
    }
  }
  return count != 0 ? wait_many(targets, count) : session().kernel_error();
}

CUresult Streams::query(Stream& stream) {
  if (stream.is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(stream);
  if (const CUresult error = session().look(); error != CUDA_SUCCESS) return error;
  session().follow_others();
  if (stream.is_behind_blocking()) {
    Targets targets;  // NOLINT: filled up to `count`
    std::size_t count = 0;
    if (const CUresult error = fence_many(Which::blocking, {}, targets, count); error != CUDA_SUCCESS) return error;
    const bool have_ended =
        std::all_of(targets.begin(), targets.begin() + count, [](Target one) { return session().has_ended(one.word, one.value); });
    return have_ended ? session().take_error() : CUDA_ERROR_NOT_READY;
  }
  std::uint32_t target = 0;
  if (const CUresult error = fence(stream, target); error != CUDA_SUCCESS) return error;
  return session().has_ended(stream.word, target) ? session().take_error() : CUDA_ERROR_NOT_READY;
}

CUresult Streams::synchronize_all() {
  Targets targets;  // NOLINT: filled up to `count`
  std::size_t count = 0;
  if (const CUresult error = fence_many(Which::all, {}, targets, count); error != CUDA_SUCCESS) return error;
  return wait_many(targets, count);
}

CUresult Streams::synchronize_all_of(proto::GreenContextId green) {
  Targets targets;  // NOLINT: filled up to `count`
  std::size_t count = 0;
  if (const CUresult error = fence_many(Which::green, green, targets, count); error != CUDA_SUCCESS) return error;
  return wait_many(targets, count);
}

}  // namespace mpsshim::interposer::forward
