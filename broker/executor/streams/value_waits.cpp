// SPDX-License-Identifier: Apache-2.0
// Stream memory operations of clients in a StreamQueue.
//
// A wait for a word's value is not given to the GPU: in its hardware connection other streams stand behind it, be they of other clients, and
// one of them may be what the word waits for. Once the stream's earlier work has ended (it may be what changes the word), the worker looks at a
// word of host memory itself. For one of device memory the GPU is asked again and again to copy it into the stream's row of the progress table,
// behind it the probe's number; the worker that reads it decides.
#include <atomic>
#include <mutex>

#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/streams/stream_queue.hpp"

namespace mpsshim::broker {

namespace {

// Acquire: what was written before it is seen by the work that is issued behind.
std::uint64_t content_of(const CheckedWord& word) {
  if (word.size_bytes() == 4) return reinterpret_cast<const std::atomic<std::uint32_t>*>(word.address())->load(std::memory_order_acquire);
  return reinterpret_cast<const std::atomic<std::uint64_t>*>(word.address())->load(std::memory_order_acquire);
}

}  // namespace

bool ValueWaitOp::is_met_by(std::uint64_t content) const {
  const bool is_short = word.size_bytes() == 4;
  const std::uint64_t found = is_short ? static_cast<std::uint32_t>(content) : content;
  const std::uint64_t wanted = is_short ? static_cast<std::uint32_t>(value) : value;
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return is_short ? static_cast<std::int32_t>(static_cast<std::uint32_t>(found - wanted)) >= 0 : static_cast<std::int64_t>(found - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return found == wanted;
    case CU_STREAM_WAIT_VALUE_AND: return (found & wanted) != 0;
    case CU_STREAM_WAIT_VALUE_NOR: return is_short ? static_cast<std::uint32_t>(~(found | wanted)) != 0 : ~(found | wanted) != 0;
    default: return true;
  }
}

// Work queued before the word's memory was given up keeps that mapped, as for a probe.
bool StreamQueue::has_value(ValueWaitOp& wait) {
  if (!has_completed(account_.issued())) return false;
  if (wait.word.is_host()) return wait.is_met_by(content_of(wait.word));
  if (wait.was_probed) {
    const StreamProgress& row = word();
    // Acquire: the GPU has written the word before the number.
    if (row.probe_number.load(std::memory_order_acquire) != wait.probe) return false;
    if (wait.is_met_by(row.probe.load(std::memory_order_relaxed))) return true;
  }
  send_probe(wait);
  return false;
}

// What was abandoned is marked before its word is written (control process: abandon_events()).
bool SharedWaitOp::is_over() const {
  using Slot = proto::SharedEventSlot;
  const std::uint32_t number = record.number(), at = number % Slot::kRecords;
  if (number == 0) return true;
  if (!proto::is_reached(record.slot().completed[at].load(std::memory_order_acquire), number)) return false;
  return !needs_work || record.slot().abandoned[at].load(std::memory_order_relaxed) != number;
}

// Not counted as a submission: the one before has ended.
void StreamQueue::send_probe(ValueWaitOp& wait) {
  wait.probe = ++probes_;
  wait.was_probed = true;
  const std::uint32_t row = stream_->progress_index;
  note_kind(WorkKind::memory);
  word().probes.store(probes_, std::memory_order_release);
  const std::lock_guard lock(issue_lock());
  CUresult result = CheckedCalls(driver()).probe(wait.word, context_.parts.progress, row, handle());
  if (result == CUDA_SUCCESS) result = context_.parts.progress.probe_number(row).write(driver(), handle(), probes_);
  if (context_.check(result, "looking at a word that a stream waits for") == CUDA_SUCCESS) return;
  wait.condition = ~0u;  // it cannot be looked at: the client has the error, and its stream goes on
  word().probe_number.store(probes_, std::memory_order_release);
}

// A stream goes back to the pool when no probe is under way.
bool StreamQueue::is_probing() const { return !is_finished() && word().probe_number.load(std::memory_order_acquire) != probes_; }

void StreamQueue::issue_write(const ValueWriteOp& write) {
  if (write.word) note_write(write.word->address(), write.word->size_bytes());
  const CheckedCalls calls(driver());
  const std::lock_guard lock(issue_lock());
  const CUresult result = write.word ? calls.write(*write.word, write.value, write.flags, handle()) : calls.flush_remote_writes(handle());
  context_.check(result, "a stream memory operation");
  account_.submitted(1);
}

}  // namespace mpsshim::broker
