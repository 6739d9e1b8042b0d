// SPDX-License-Identifier: Apache-2.0
// Stream memory operations of clients in a StreamQueue.
//
// A wait for a word's value is not given to the GPU: in its hardware connection other streams stand behind it, be they of other clients, and
// one of them may be what the word waits for. Once the stream's earlier work has ended (it may be what changes the word), the GPU is asked
// again and again to copy the word into the stream's row of the progress table, behind it the probe's number; the worker that reads it decides.
#include <mutex>

#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/streams/stream_queue.hpp"

namespace mpsshim::broker {

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

bool StreamQueue::has_value(ValueWaitOp& wait) {
  if (!has_completed(account_.issued())) return false;
  if (wait.was_probed) {
    const StreamProgress& row = word();
    // Acquire: the GPU has written the word before the number.
    if (row.probe_number.load(std::memory_order_acquire) != wait.probe) return false;
    if (wait.is_met_by(row.probe.load(std::memory_order_relaxed))) return true;
  }
  send_probe(wait);
  return false;
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
