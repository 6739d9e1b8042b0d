// SPDX-License-Identifier: Apache-2.0
// Events of a whole context (CUDA Driver API manual, "Context Management": cuCtxRecordEvent, cuCtxWaitEvent). All contexts of a process are one
// session, so it is the session's streams that are meant.
//
// Two streams of our own stand for the context: one comes behind everything when an event is recorded, everything comes behind the other when an
// event is waited for. One stream for both would make work wait for what was recorded before it.
#include <mutex>

#include "gen/api_declarations.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

struct ContextStream {
  Mutex mutex;
  Stream* stream GUARDED_BY(mutex) = nullptr;  // never destroyed: it belongs to no context
};
struct ContextStreams {
  ContextStream behind_all, before_all;
};
ContextStreams& context_streams() {
  return PerSession<ContextStreams>::get([] { return new ContextStreams(); });
}

CUresult use(ContextStream& context, Stream*& stream) {
  const std::lock_guard lock(context.mutex);
  if (context.stream == nullptr) {
    if (const CUresult error = Streams::instance().create(CU_STREAM_NON_BLOCKING, 0, nullptr, context.stream); error != CUDA_SUCCESS) return error;
  }
  stream = context.stream;
  return CUDA_SUCCESS;
}

CUresult post_join(Stream& stream, const proto::StreamJoinRecord& content) {
  return post_work<proto::StreamJoinRecord>(stream, 0, [&](proto::StreamJoinRecord& record, std::byte*) { record = content; });
}

// What both calls begin with.
CUresult begin_with_event(CUcontext context, CUevent handle, Event*& event) {
  if (are_calls_forbidden()) return CUDA_ERROR_NOT_PERMITTED;
  if (!find_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  event = Events::instance().resolve(handle);
  return event != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent) {
  if (const GreenObject* green = GreenContexts::instance().of_context(hCtx))
    return api::cuGreenCtxRecordEvent(to_handle<CUgreenCtx>(green->id), hEvent);
  Event* event = nullptr;
  if (const CUresult error = begin_with_event(hCtx, hEvent, event); error != CUDA_SUCCESS) return error;
  if (event->context != hCtx) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult error = Captures::instance().check_wait_for_all(); error != CUDA_SUCCESS) return error;
  Stream* stream = nullptr;
  if (const CUresult error = use(context_streams().behind_all, stream); error != CUDA_SUCCESS) return error;
  if (const CUresult error = post_join(*stream, {1, 0}); error != CUDA_SUCCESS) return error;
  return Events::instance().record(*event, *stream, CU_EVENT_RECORD_DEFAULT);
}

CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent) {
  if (const GreenObject* green = GreenContexts::instance().of_context(hCtx))
    return api::cuGreenCtxWaitEvent(to_handle<CUgreenCtx>(green->id), hEvent);
  Event* event = nullptr;
  if (const CUresult error = begin_with_event(hCtx, hEvent, event); error != CUDA_SUCCESS) return error;
  if (const CUresult error = Captures::instance().check_wait_for_all(); error != CUDA_SUCCESS) return error;
  Stream* stream = nullptr;
  if (const CUresult error = use(context_streams().before_all, stream); error != CUDA_SUCCESS) return error;
  if (const CUresult error = Events::instance().wait_on_stream(*event, *stream, CU_EVENT_WAIT_DEFAULT); error != CUDA_SUCCESS) return error;
  return post_join(*stream, {0, 1});
}

}  // namespace mpsshim::interposer::api
