// SPDX-License-Identifier: Apache-2.0
// How a stream's copies and fills are issued.
#include <algorithm>
#include <mutex>

#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/streams/stream_queue.hpp"

namespace mpsshim::broker {

void StreamQueue::issue_copy(const CheckedCopy& copy) {
  if (!copy.destination().is_host()) note_write(copy.destination().address(), copy.size_bytes());
  const ScopedCall call(context_.session, "cuMemcpyAsync", {"bytes", copy.size_bytes()});
  const DrawnArrows drawn = drawn_arrows();
  const std::lock_guard lock(issue_lock());
  context_.check(CheckedCalls(driver()).copy(copy, handle()), "cuMemcpyAsync");
  account_.submitted(1);
}

void StreamQueue::issue_copy_box(const CheckedBoxCopy& copy) {
  if (!copy.destination().is_host()) note_write(copy.destination().address(), copy.destination().size_bytes());
  const ScopedCall call(context_.session, "cuMemcpy3DAsync", {"bytes", copy.size().width * copy.size().height * copy.size().depth});
  const DrawnArrows drawn = drawn_arrows();
  const std::lock_guard lock(issue_lock());
  context_.check(CheckedCalls(driver()).copy(copy, handle()), "cuMemcpy3DAsync");
  account_.submitted(1);
}

void StreamQueue::issue_array_copy(const CheckedArrayCopy& copy) {
  const CUDA_MEMCPY3D& to = copy.description();
  if (to.dstMemoryType == CU_MEMORYTYPE_DEVICE || to.dstMemoryType == CU_MEMORYTYPE_UNIFIED) {
    const std::size_t rows = (to.dstZ + to.Depth) * std::max(to.dstHeight, to.dstY + to.Height);
    note_write(to.dstDevice, rows * std::max(to.dstPitch, to.dstXInBytes + to.WidthInBytes));
  }
  const ScopedCall call(context_.session, "cuMemcpy3DAsync");
  const DrawnArrows drawn = drawn_arrows();
  const std::lock_guard lock(issue_lock());
  context_.check(CheckedCalls(driver()).copy(copy, handle()), "cuMemcpy3DAsync");
  account_.submitted(1);
}

void StreamQueue::issue_fill(const CheckedFill& fill) {
  note_write(fill.destination(), fill.size_bytes());
  const ScopedCall call(context_.session, "cuMemsetAsync", {"bytes", fill.width() * fill.height() * fill.element_bytes()});
  const DrawnArrows drawn = drawn_arrows();
  const std::lock_guard lock(issue_lock());
  context_.check(CheckedCalls(driver()).fill(fill, handle()), "cuMemsetAsync");
  account_.submitted(1);
}

}  // namespace mpsshim::broker
