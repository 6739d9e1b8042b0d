// SPDX-License-Identifier: Apache-2.0
// How a stream's copies and fills are issued.
#include <mutex>

#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/streams/stream_queue.hpp"

namespace mpsshim::broker {

void StreamQueue::issue_copy(const CheckedCopy& copy) {
  const ScopedCall call(context_.session, "cuMemcpyAsync", {"bytes", copy.size_bytes()});
  const std::lock_guard lock(issue_lock());
  context_.check(CheckedCalls(driver()).copy(copy, handle()), "cuMemcpyAsync");
  account_.submitted(1);
}

void StreamQueue::issue_copy_box(const CheckedBoxCopy& copy) {
  const ScopedCall call(context_.session, "cuMemcpy3DAsync", {"bytes", copy.size().width * copy.size().height * copy.size().depth});
  const std::lock_guard lock(issue_lock());
  context_.check(CheckedCalls(driver()).copy(copy, handle()), "cuMemcpy3DAsync");
  account_.submitted(1);
}

void StreamQueue::issue_array_copy(const CheckedArrayCopy& copy) {
  const ScopedCall call(context_.session, "cuMemcpy3DAsync");
  const std::lock_guard lock(issue_lock());
  context_.check(CheckedCalls(driver()).copy(copy, handle()), "cuMemcpy3DAsync");
  account_.submitted(1);
}

void StreamQueue::issue_fill(const CheckedFill& fill) {
  const ScopedCall call(context_.session, "cuMemsetAsync", {"bytes", fill.width() * fill.height() * fill.element_bytes()});
  const std::lock_guard lock(issue_lock());
  context_.check(CheckedCalls(driver()).fill(fill, handle()), "cuMemsetAsync");
  account_.submitted(1);
}

}  // namespace mpsshim::broker
