// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Stream Management", "Stream Memory Operations", and cuLaunchHostFunc.
#include <algorithm>

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/context/context.hpp"
#include "broker/cpudriver/context/green_context.hpp"
#include "broker/cpudriver/streams/commands.hpp"
#include "broker/cpudriver/streams/event.hpp"

using namespace mpsshim::cpudriver;

namespace {

template <class Body>
CUresult with_stream(CUstream handle, Body&& body) {
  return entry(needs_on(handle), [&]() -> CUresult {
    const StreamPtr stream = stream_of(handle);
    const CUresult refused = usable(stream);
    return refused != CUDA_SUCCESS ? refused : body(stream);
  });
}

CUresult memory_operations(const StreamPtr& stream, unsigned count, const CUstreamBatchMemOpParams* operations) {
  const CUresult checked = MemoryOperations::check(count, operations);
  if (checked != CUDA_SUCCESS) return checked;
  Scheduler::get().submit(stream, as_operation(MemoryOperations(count, operations)));
  return CUDA_SUCCESS;
}

CUstreamBatchMemOpParams wait_for(CUstreamBatchMemOpType type, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = type;
  operation.waitValue.address = address;
  operation.waitValue.value64 = value;  // little endian: value is its lower half
  operation.waitValue.flags = flags;
  return operation;
}

CUstreamBatchMemOpParams write_to(CUstreamBatchMemOpType type, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = type;
  operation.writeValue.address = address;
  operation.writeValue.value64 = value;
  operation.writeValue.flags = flags;
  return operation;
}

}  // namespace

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  return entry(Needs::context, [&] {
    if (phStream == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Scheduler::get().wait_for_windows();
    const int clamped = std::clamp(priority, Context::kGreatestPriority, Context::kLeastPriority);
    auto stream = std::make_shared<Stream>(Stream::Kind::ordinary, flags, clamped, GreenContext::current());
    *phStream = static_cast<CUstream>(HandleTable<Stream>::get().add(std::move(stream)));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int Flags) { return cuStreamCreateWithPriority(phStream, Flags, 0); }

// What is queued still runs; the scheduler keeps the stream until then.
CUresult CUDAAPI cuStreamDestroy(CUstream hStream) {
  return entry(Needs::handle, [&] {
    Scheduler::get().wait_for_windows();
    const CUresult refused = usable(HandleTable<Stream>::get().find(hStream));
    if (refused == CUDA_SUCCESS) HandleTable<Stream>::get().remove(hStream);
    return refused;
  });
}

CUresult CUDAAPI cuStreamQuery(CUstream hStream) {
  return with_stream(hStream, [](const StreamPtr& stream) {
    Scheduler& scheduler = Scheduler::get();
    return scheduler.reached(scheduler.last_of(stream)) ? scheduler.failure() : CUDA_ERROR_NOT_READY;
  });
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
  return with_stream(hStream, [](const StreamPtr& stream) { return Scheduler::get().wait(Scheduler::get().last_of(stream)); });
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return with_stream(hStream, [&](const StreamPtr& stream) {
    if ((Flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto event = HandleTable<Event>::get().find(hEvent);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Operation operation;
    operation.is_instant = true;
    operation.after.push_back(event->position());
    operation.run = [] { return CUDA_SUCCESS; };
    Scheduler::get().submit(stream, std::move(operation));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetPriority(CUstream hStream, int* priority) {
  return with_stream(hStream, [&](const StreamPtr& stream) {
    if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
  return with_stream(hStream, [&](const StreamPtr& stream) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
  return with_stream(hStream, [&](const StreamPtr& stream) {
    if (streamId == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *streamId = stream->id();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  return with_stream(hStream, [&](const StreamPtr& stream) {
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const GreenContextPtr green = stream->green();
    *pctx = green != nullptr ? green->context() : Context::primary().handle();
    return CUDA_SUCCESS;
  });
}

// Capture is not made here, so no stream ever captures.
CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  return with_stream(hStream, [&](const StreamPtr&) {
    if (captureStatus == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  return with_stream(stream, [&](const StreamPtr& target) {
    const auto operation = write_to(CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
    return memory_operations(target, 1, &operation);
  });
}

CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
  return with_stream(stream, [&](const StreamPtr& target) {
    const auto operation = write_to(CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
    return memory_operations(target, 1, &operation);
  });
}

CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  return with_stream(stream, [&](const StreamPtr& target) {
    const auto operation = wait_for(CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
    return memory_operations(target, 1, &operation);
  });
}

CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
  return with_stream(stream, [&](const StreamPtr& target) {
    const auto operation = wait_for(CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
    return memory_operations(target, 1, &operation);
  });
}

CUresult CUDAAPI cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return with_stream(stream,
                     [&](const StreamPtr& target) { return flags == 0 ? memory_operations(target, count, paramArray) : CUDA_ERROR_INVALID_VALUE; });
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
  return with_stream(hStream, [&](const StreamPtr& stream) {
    if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Operation operation;  // never run by the submitter: the function may take its time, or locks that it holds
    operation.run = [fn, userData] {
      fn(userData);
      return CUDA_SUCCESS;
    };
    Scheduler::get().submit(stream, std::move(operation));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData, unsigned int flags) {
  return with_stream(hStream, [&](const StreamPtr& stream) {
    if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    Operation operation;
    operation.run = [callback, hStream, userData] {
      callback(hStream, CUDA_SUCCESS, userData);
      return CUDA_SUCCESS;
    };
    Scheduler::get().submit(stream, std::move(operation));
    return CUDA_SUCCESS;
  });
}
