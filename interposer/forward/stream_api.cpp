// SPDX-License-Identifier: Apache-2.0
// Stream management (CUDA Driver API manual, "Stream Management"); captures are in graphs/capture_api.cpp.
#include <algorithm>

#include "gen/api_declarations.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/peer_waits.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// Runs f(Stream&) for a call that names a stream.
template <typename F>
CUresult with_stream(CUstream handle, F&& f) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(handle);
  return stream != nullptr ? f(*stream) : Streams::instance().missing(handle);
}

CUresult create_stream(CUstream* handle, unsigned int flags, int priority) {
  if (handle == nullptr || (flags & ~static_cast<unsigned int>(CU_STREAM_NON_BLOCKING)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  if (const proto::DeviceFacts* facts = device_facts(current_device())) {
    // Outside the range a priority is clamped, not refused; the greatest priority is the lowest number.
    priority = std::clamp(priority, std::min(facts->greatest_stream_priority, 0), std::max(facts->least_stream_priority, 0));
  }
  Stream* stream = nullptr;
  StreamShape shape{flags, priority, current_context(), {}, false};
  if (const GreenObject* green = GreenContexts::instance().current_place()) shape.green = green->id;
  if (const CUresult error = Streams::instance().create(shape, stream); error != CUDA_SUCCESS) return error;
  *handle = to_handle<CUstream>(stream->id);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) { return create_stream(phStream, Flags, 0); }
CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) { return create_stream(phStream, flags, priority); }

CUresult cuStreamDestroy_v2(CUstream hStream) {
  if (hStream == nullptr || hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = session().ensure_attached(); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(hStream);
  if (stream == nullptr) return Streams::instance().missing(hStream);
  if (stream->is_null_stream) return CUDA_ERROR_INVALID_HANDLE;
  return Streams::instance().destroy(stream->id);
}

CUresult cuStreamSynchronize(CUstream hStream) {
  return with_stream(hStream, [](Stream& stream) { return Streams::instance().synchronize(stream); });
}
CUresult cuStreamQuery(CUstream hStream) {
  return with_stream(hStream, [](Stream& stream) { return Streams::instance().query(stream); });
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  if (Flags != CU_EVENT_WAIT_DEFAULT && Flags != CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  return with_stream(hStream, [&](Stream& stream) {
    Event* event = Events::instance().resolve(hEvent);
    if (event == nullptr && has_several_sessions()) return PeerWaits::instance().wait(stream, hEvent);
    return event != nullptr ? Events::instance().wait_on_stream(*event, stream, Flags) : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_stream(hStream, [&](Stream& stream) {
    *flags = stream.flags;
    return CUDA_SUCCESS;
  });
}
CUresult cuStreamGetPriority(CUstream hStream, int* priority) {
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_stream(hStream, [&](Stream& stream) {
    *priority = stream.priority;
    return CUDA_SUCCESS;
  });
}
CUresult cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
  if (streamId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_stream(hStream, [&](Stream& stream) {
    *streamId = stream.unique_id;
    return CUDA_SUCCESS;
  });
}
CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_stream(hStream, [&](Stream& stream) {
    *pctx = stream.context != nullptr ? stream.context : current_context();
    return CUDA_SUCCESS;
  });
}
// Of a stream of a green context: that, and the primary context.
CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
  if (pCtx == nullptr || pGreenCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_stream(hStream, [&](Stream& stream) {
    *pCtx = owning_context(stream.context != nullptr ? stream.context : current_context());
    *pGreenCtx = to_handle<CUgreenCtx>(GreenContexts::instance().told_of(stream.green));
    return CUDA_SUCCESS;
  });
}
CUresult cuStreamGetDevice(CUstream hStream, CUdevice* device) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_stream(hStream, [&](Stream&) {
    *device = session_device();
    return CUDA_SUCCESS;
  });
}

}  // namespace mpsshim::interposer::api
