// SPDX-License-Identifier: Apache-2.0
// Green contexts once they are made (CUDA Driver API manual, "Green Contexts"): their streams, events, handles.
#include <algorithm>

#include "gen/api_declarations.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// Runs f(GreenObject&) for a call that names a green context, whatever is current.
template <typename F>
CUresult with_green(CUgreenCtx handle, F&& f) {
  if (are_calls_forbidden()) return CUDA_ERROR_NOT_PERMITTED;
  GreenObject* green = GreenContexts::instance().resolve(handle);
  return green != nullptr ? f(*green) : CUDA_ERROR_INVALID_CONTEXT;
}

template <typename F>
CUresult with_event_of(CUgreenCtx handle, CUevent event_handle, F&& f) {
  return with_green(handle, [&](GreenObject& green) {
    if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
    Event* event = Events::instance().resolve(event_handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = Captures::instance().check_wait_for_all(green.id); error != CUDA_SUCCESS) return error;
    return f(green, *event);
  });
}

}  // namespace

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
  return with_green(hCtx, [](GreenObject& green) {
    const CUdevice device = green.device;
    const CUresult error = GreenContexts::instance().destroy(green.id);
    (void)release_primary_context(device);
    return error;
  });
}

CUresult cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) {
  return with_green(hCtx, [&](const GreenObject& green) {
    if (pContext == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pContext = green.context;
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags, int priority) {
  return with_green(greenCtx, [&](const GreenObject& green) {
    if (phStream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
    const proto::DeviceFacts& facts = *device_facts(green.device);
    priority = std::clamp(priority, std::min(facts.greatest_stream_priority, 0), std::max(facts.least_stream_priority, 0));
    Stream* stream = nullptr;
    const CUresult error = Streams::instance().create(StreamShape{flags, priority, green.context, green.id, false}, stream);
    if (error == CUDA_SUCCESS) *phStream = to_handle<CUstream>(stream->id);
    return error;
  });
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) {
  return with_event_of(hCtx, hEvent, [](GreenObject& green, Event& event) {
    if (event.context != primary_context(green.device)) return CUDA_ERROR_INVALID_HANDLE;
    return GreenContexts::instance().record(green, event);
  });
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) {
  return with_event_of(hCtx, hEvent, [](GreenObject& green, Event& event) { return GreenContexts::instance().wait(green, event); });
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) {
  if (phCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_on(hStream); error != CUDA_SUCCESS) return error;
  const Stream* stream = Streams::instance().resolve(hStream);
  if (stream == nullptr) return Streams::instance().missing(hStream);
  *phCtx = to_handle<CUgreenCtx>(GreenContexts::instance().told_of(stream->green));
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long* greenCtxId) {
  if (greenCtxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GreenContexts& contexts = GreenContexts::instance();
  const GreenObject* green = greenCtx != nullptr ? contexts.resolve(greenCtx) : contexts.current();
  if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *greenCtxId = green->unique_id;
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
