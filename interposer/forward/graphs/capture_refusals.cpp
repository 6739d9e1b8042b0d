// SPDX-License-Identifier: Apache-2.0
// What does not go together with a capture: work that cannot be captured, calls that are unsafe meanwhile, and waits for all of a context. Each ends
// what the capture was good for.
#include <algorithm>
#include <thread>
#include <utility>

#include "interposer/forward/graphs/capture.hpp"

namespace mpsshim::interposer::forward {

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

}  // namespace

CUstreamCaptureMode Captures::exchange_mode(CUstreamCaptureMode mode) { return std::exchange(thread_mode, mode); }

// Of the NULL stream: it would have to wait for what captures.
CUresult Captures::refuse_null_stream() {
  for (const auto& [stream, member] : streams_) {
    if (stream->is_blocking) member.capture->is_invalid = true;
  }
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult Captures::refuse_locked(Stream& stream) {
  const auto found = streams_.find(&stream);
  if (found == streams_.end()) return refuse_null_stream();
  if (found->second.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  found->second.capture->is_invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult Captures::refuse(Stream& stream) {
  const std::lock_guard lock(graphs_.mutex());
  return refuse_locked(stream);
}

CUresult Captures::refuse(Event& event) {
  const std::lock_guard lock(graphs_.mutex());
  const auto found = events_.find(&event);
  // Of a capture that has ended, the driver finds fault with the event itself (seen on an H200, driver 580).
  if (found != events_.end() && found->second.capture->is_over) return CUDA_ERROR_INVALID_VALUE;
  if (found != events_.end()) found->second.capture->is_invalid = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult Captures::refuse_unsafe_call() {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const std::lock_guard lock(graphs_.mutex());
  CUresult result = CUDA_SUCCESS;
  for (const CaptureRef& capture : captures_) {
    const bool is_own = capture->thread == std::this_thread::get_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool is_everybodys = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!is_own && !is_everybodys) continue;
    capture->is_invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Captures::refuse_wait_for_all() {
  const std::lock_guard lock(graphs_.mutex());
  for (const CaptureRef& capture : captures_) capture->is_invalid = true;
  return captures_.empty() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult Captures::refuse_wait_for_green(proto::GreenContextId green) {
  const std::lock_guard lock(graphs_.mutex());
  CUresult result = CUDA_SUCCESS;
  for (const CaptureRef& capture : captures_) {
    if (std::none_of(capture->streams.begin(), capture->streams.end(), [&](const Stream* stream) { return stream->green == green; })) continue;
    capture->is_invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

}  // namespace mpsshim::interposer::forward
