// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Event Management". Events between processes do not exist here.
#include "broker/cpudriver/streams/event.hpp"

#include "broker/cpudriver/api/entry.hpp"

using namespace mpsshim::cpudriver;

namespace {

constexpr unsigned kCreateFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;

template <class Body>
CUresult with_event(Needs needs, CUevent handle, Body&& body) {
  return entry(needs, [&]() -> CUresult {
    const auto event = HandleTable<Event>::get().find(handle);
    return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*event);
  });
}

}  // namespace

CUresult CUDAAPI cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  return entry(Needs::context, [&] {
    if (phEvent == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool is_shared = (Flags & CU_EVENT_INTERPROCESS) != 0;
    if (is_shared && (Flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
    if (is_shared) return CUDA_ERROR_NOT_SUPPORTED;
    if ((Flags & ~kCreateFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    Scheduler::get().wait_for_windows();
    *phEvent = static_cast<CUevent>(HandleTable<Event>::get().add(std::make_shared<Event>(Flags)));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventDestroy(CUevent hEvent) {
  return entry(Needs::handle, [&] { return HandleTable<Event>::get().remove(hEvent) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS; });
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return with_event(needs_on(hStream), hEvent, [&](Event& event) {
    if ((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) != 0) return CUDA_ERROR_INVALID_VALUE;
    const StreamPtr stream = stream_of(hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    event.record(stream);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream) { return cuEventRecordWithFlags(hEvent, hStream, 0); }

CUresult CUDAAPI cuEventQuery(CUevent hEvent) {
  return with_event(Needs::handle, hEvent,
                    [](Event& event) { return Scheduler::get().reached(event.position()) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; });
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent) {
  return with_event(Needs::handle, hEvent, [](Event& event) { return Scheduler::get().wait(event.position()); });
}

CUresult CUDAAPI cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return with_event(Needs::handle, hStart, [&](Event& start) {
    const auto end = HandleTable<Event>::get().find(hEnd);
    if (end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return Event::elapsed_ms(start, *end, pMilliseconds);
  });
}
