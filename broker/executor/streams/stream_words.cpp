// SPDX-License-Identifier: Apache-2.0
// How a stream's events, waits and fences are issued, and who writes its words: the GPU, or, for a late fence, this thread.
#include "broker/executor/streams/stream_queue.hpp"

#include <mutex>
#include <utility>

#include "broker/executor/window/quiet_window.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

// Waits on the GPU come behind the fence: what the host learns from work that has waited, it finds in the stream's word as well. The time is
// that of the work, so a timed event has a second one behind the fence.
void StreamQueue::issue_record(RecordOp& record) {
  owed_.note_record();
  if (may_owe(record)) return owe(record);
  EventPoint* const point = record.point.get();
  const bool is_timed = record.takes_time() && record.has_fence;
  if (is_timed) record_event(point->handle);
  if (record.has_fence) write_fence(record.fence_value);
  if (point == nullptr) return;
  if (is_timed && !point->behind) context_.check(context_.parts.events.take(false, point->behind), "cuEventCreate");
  if (!is_timed || point->behind) record_event(point->awaited());
  point->is_issued = true;  // even if it failed: who waits for it must not wait for ever
}

bool StreamQueue::may_owe(const RecordOp& record) const {
  return record.has_fence && record.point != nullptr && may_owe_progress() && owed_.may_owe(record.fence_value);
}

// An earlier record's second event would be waited for in place of this one's.
void StreamQueue::owe(RecordOp& record) {
  record.point->behind = nullptr;
  owed_.announce(record.fence_value);
  record_event(record.point->handle);
  record.point->is_issued = true;  // as in issue_record()
  if (!owed_.add(account_.issued(), record.fence_value, record.point)) write_progress();
}

void StreamQueue::look_for_owed() {
  if (!is_finished()) context_.check(owed_.look(driver()), "cuEventQuery");
}

void StreamQueue::record_event(CUevent event) {
  const std::lock_guard lock(issue_lock());
  context_.check(driver()->cuEventRecord(event, handle()), "cuEventRecord");
  account_.submitted(1);
}

void StreamQueue::issue_wait(const WaitOp& wait) {
  const std::lock_guard lock(issue_lock());
  context_.check(driver()->cuStreamWaitEvent(handle(), wait.point->awaited(), CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent");
  account_.submitted(1);
}

// Where words that cover all of the work are under way or there, the fence waits for them here: the GPU has nothing to do for it. Not so for
// short work, whose client hears from the GPU sooner than from this thread, which has others to serve.
void StreamQueue::issue_fence(const FenceOp& fence) {
  account_.end_run();
  const bool is_covered = account_.written() + 1 == account_.issued();
  if (!is_covered || (rhythm_.is_short() && !has_completed(account_.written()))) return write_fence(fence.value);
  late_fences_.push_back({account_.issued(), fence.value});
  account_.progress_submitted();
  settle_fences();
}

// The client waits for it in SessionClient::wait_fence.
void StreamQueue::write_fence(std::uint32_t value) {
  context_.check(write_words(value), "writing a fence");
  note_words();
}

void StreamQueue::note_words() {
  account_.progress_submitted();
  owed_.note_told();
}

// The GPU may write both words at any moment, for work behind the fence; what it writes then covers the fence, and stays.
bool StreamQueue::settle_fences() {
  owed_.settle([this](std::uint32_t position) { return has_completed(position); });
  while (!late_fences_.empty() && !is_finished()) {
    const LateFence& late = late_fences_.front();
    std::uint32_t before = word().completed.load(std::memory_order_acquire);
    if (!progress_reached(before, late.position - 1)) return false;
    raise_fence(context_.channel.fence(fence_index_), late.value);
    if (before == late.position - 1) word().completed.compare_exchange_strong(before, late.position, std::memory_order_release);
    late_fences_.pop_front();
    if (proto::trace::enabled()) [[unlikely]]
      proto::trace::instant("fence", "fence written by the worker", {{"session", context_.session}});
  }
  return !has_wanted_fences();
}

void StreamQueue::write_progress() {
  if (!has_unwritten_progress() || is_finished()) return;
  context_.check(write_words(std::nullopt), "writing progress");
  note_words();
}

// Where events are recorded that nobody looks for. With more streams at work than hardware connections a later write would stand in its connection
// behind the work, and others' behind it.
bool StreamQueue::may_owe_progress() const {
  return owed_.is_usual() && !has_completed(account_.written()) && !context_.parts.is_crowded.load(std::memory_order_relaxed);
}

bool StreamQueue::offer_progress() {
  const bool is_owed = has_unwritten_progress() && may_owe_progress();
  if (is_owed)
    rhythm_.note_under_way();
  else
    write_progress();
  return !is_owed;
}

WordWrites StreamQueue::words(std::optional<std::uint32_t> fence_value) const {
  WordWrites words;
  words.progress = context_.parts.progress.completed(stream_->progress_index);
  words.progress_value = account_.issued();
  if (!fence_value) fence_value = owed_.untold();
  if (fence_value) {
    words.fence = context_.channel.fence_word(fence_index_);
    words.fence_value = *fence_value;
  }
  return words;
}

void StreamQueue::note_rhythm() {
  rhythm_.note(context_.parts.last_writer.again(stream_->progress_index), [this] { return has_completed(account_.written()); });
}

bool StreamQueue::prefers_memory_operations() {
  ExecutorParts& parts = context_.parts;
  if (parts.writer_function == nullptr || parts.chains_refused.load(std::memory_order_relaxed)) return true;
  note_rhythm();
  return rhythm_.is_short_and_alone();
}

CUresult StreamQueue::write_words(std::optional<std::uint32_t> fence_value) {
  const proto::trace::Span span("driver", fence_value ? "writing a fence" : "writing progress", {"session", context_.session});
  const WordWrites writes = words(fence_value);
  if (!prefers_memory_operations() && chains_.launch(handle(), {}, &writes)) {
    account_.submitted(1);
    return CUDA_SUCCESS;
  }
  return write_by_memory_operations(writes);
}

CUresult StreamQueue::write_by_memory_operations(const WordWrites& words) {
  ExecutorParts& parts = context_.parts;
  const std::lock_guard lock(issue_lock());
  const auto write = [&](OwnWord word, std::uint32_t value) {
    account_.submitted(1);
    return word.write(driver(), handle(), value);
  };
  if (!words.fence) return write(words.progress, words.progress_value);
  if (!parts.batches_refused.load(std::memory_order_relaxed)) {
    const CUresult result = words.fence.write_with(driver(), handle(), words.fence_value, words.progress, words.progress_value);
    if (result != CUDA_ERROR_NOT_SUPPORTED) {
      account_.submitted(1);
      return result;
    }
    parts.batches_refused.store(true, std::memory_order_relaxed);
  }
  const CUresult result = write(words.fence, words.fence_value);
  return result != CUDA_SUCCESS ? result : write(words.progress, words.progress_value);
}

}  // namespace mpsshim::broker
