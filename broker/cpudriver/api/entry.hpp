// SPDX-License-Identifier: Apache-2.0
//
// What every exported function does around its body: is the driver initialised, is there a context, is it still alive;
// and no exception crosses the C ABI. The functions of api/ check arguments and call the parts that do the work.
#pragma once

#include <cuda.h>

#include <new>

#include "broker/cpudriver/device/devices.hpp"
#include "broker/cpudriver/handle_table.hpp"
#include "broker/cpudriver/streams/scheduler.hpp"
#include "broker/cpudriver/streams/stream.hpp"

namespace mpsshim::cpudriver {

enum class Needs {
  nothing,
  initialised,
  device,   // which has not failed; no context need be current
  context,  // one that is current and has not failed
  handle,   // what the call names belongs to a context by itself: none need be current
};

CUresult check(Needs needs);
void mark_initialised();

template <class Body>
CUresult entry(Needs needs, Body&& body) noexcept {
  try {
    const CUresult ready = check(needs);
    return ready == CUDA_SUCCESS ? body() : ready;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// The stream that a handle names; null if none. NULL and CU_STREAM_LEGACY are the context's, CU_STREAM_PER_THREAD the
// thread's own, which green contexts do not have.
StreamPtr stream_of(CUstream handle);
// What a call is told that names such a stream.
inline CUresult usable(const StreamPtr& stream) {
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return stream->is_orphan() ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

// What such a call needs: the NULL stream and the thread's own are those of the current context, every other stream is a handle.
inline Needs needs_on(CUstream handle) {
  const bool is_handle = handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD;
  return is_handle ? Needs::handle : Needs::context;
}

}  // namespace mpsshim::cpudriver
