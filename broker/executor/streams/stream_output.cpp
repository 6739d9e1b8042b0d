// SPDX-License-Identifier: Apache-2.0
// What a stream's kernels print (device_output.hpp): a kernel that may print waits for its session's turn, and nothing that the client could take
// for the kernel's end is issued before the text is with the control process. What is not told the client goes on meanwhile.
#include "broker/executor/streams/stream_queue.hpp"

#include <mutex>

namespace mpsshim::broker {

bool StreamQueue::waits_for_output(const StreamOp& head) {
  if (is_flushing_output_) return true;  // the helper waits for all that is in the stream
  DeviceOutput& output = context_.parts.output;
  if (has_output()) {
    const bool tells_client = std::holds_alternative<FenceOp>(head) || std::holds_alternative<RecordOp>(head);
    if (tells_client || output.is_wanted()) return true;
  }
  return may_print(head) && !output.enter(context_.session);
}

void StreamQueue::note_output() {
  has_output_ = true;
  context_.parts.output.note_launch();
}

// All that was in the stream has ended, so nobody waits long for the lock.
CUresult StreamQueue::flush_output() const {
  std::unique_lock lock(issue_lock(), std::defer_lock);
  if (is_in_green()) lock.lock();
  return driver()->cuStreamSynchronize(handle());
}

void StreamQueue::end_output() {
  has_output_ = false;
  is_flushing_output_ = false;
}

}  // namespace mpsshim::broker
