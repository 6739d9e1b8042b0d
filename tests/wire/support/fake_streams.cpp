// SPDX-License-Identifier: Apache-2.0
// Streams, events and green contexts of the fake driver.
#include "tests/wire/support/fake_work.hpp"

namespace mpsshim::test {

namespace {

thread_local std::vector<CUcontext> pushed;  // contexts, above the executor's own

}  // namespace

// The functions behind the table.
struct FakeStreamsEntry {
  static CUresult CUDAAPI stream_create(CUstream* stream, unsigned, int priority) {
    FakeDriver::current().make(stream);
    std::lock_guard lock(FakeDriver::current().mutex_);
    FakeDriver::current().streams_[*stream].priority = priority;
    return CUDA_SUCCESS;
  }
  // A green context is its own handle as a context; streams count it.
  static CUresult CUDAAPI device_resource(CUdevice, CUdevResource* resource, CUdevResourceType type) {
    *resource = CUdevResource{};
    resource->type = type;
    resource->sm.smCount = 16;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI split(CUdevResource* result, unsigned* groups, const CUdevResource* input, CUdevResource* remaining, unsigned,
                                unsigned min_count) {
    if (result == nullptr) *groups = input->sm.smCount / min_count;
    for (unsigned i = 0; result != nullptr && i < *groups; ++i) {
      result[i] = *input;
      result[i].sm.smCount = min_count;
    }
    if (remaining != nullptr) *remaining = *input;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI describe(CUdevResourceDesc* descriptor, CUdevResource*, unsigned) { return FakeDriver::current().make(descriptor); }
  static CUresult CUDAAPI green_create(CUgreenCtx* green, CUdevResourceDesc, CUdevice, unsigned) {
    ++FakeDriver::current().greens;
    return FakeDriver::current().make(green);
  }
  static CUresult CUDAAPI green_destroy(CUgreenCtx) {
    --FakeDriver::current().greens;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI green_resource(CUgreenCtx, CUdevResource* resource, CUdevResourceType type) { return device_resource(0, resource, type); }
  static CUresult CUDAAPI green_context(CUcontext* context, CUgreenCtx green) {
    *context = reinterpret_cast<CUcontext>(green);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI green_stream(CUstream* stream, CUgreenCtx green, unsigned, int priority) {
    FakeDriver::current().make(stream);
    std::lock_guard lock(FakeDriver::current().mutex_);
    FakeDriver::current().streams_[*stream].context = reinterpret_cast<CUcontext>(green);
    FakeDriver::current().streams_[*stream].priority = priority;
    ++FakeDriver::current().green_streams;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI stream_destroy(CUstream stream) {
    std::lock_guard lock(FakeDriver::current().mutex_);
    if (FakeDriver::current().streams_[stream].context != nullptr) --FakeDriver::current().green_streams;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI push(CUcontext context) {
    FakeDriver::current().begin_green_use(context);
    pushed.push_back(context);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI pop(CUcontext* context) {
    *context = pushed.back();
    FakeDriver::current().end_green_use(*context);
    pushed.pop_back();
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI event_create(CUevent* event, unsigned) { return FakeDriver::current().make(event); }
  static CUresult CUDAAPI record(CUevent event, CUstream stream) {
    FakeCall call(FakeCall::record);
    call.event = event;
    FakeDriver::current().submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI query(CUevent event) {
    const std::lock_guard lock(FakeDriver::current().mutex_);
    const auto& records = FakeDriver::current().records_[event];
    return records.ended >= records.made ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult CUDAAPI wait(CUstream stream, CUevent event, unsigned) {
    FakeCall call(FakeCall::wait);
    call.event = event;
    FakeDriver::current().submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
};

void FakeStreams::fill(DriverTable& table) {
  table.cuStreamCreate = [](CUstream* stream, unsigned flags) { return FakeStreamsEntry::stream_create(stream, flags, 0); };
  table.cuStreamCreateWithPriority = FakeStreamsEntry::stream_create;
  table.cuStreamDestroy_v2 = FakeStreamsEntry::stream_destroy;
  table.cuStreamSynchronize = [](CUstream) { return CUDA_SUCCESS; };  // asked before there is work that is held
  table.cuDeviceGetDevResource = FakeStreamsEntry::device_resource;
  table.cuDevSmResourceSplitByCount = FakeStreamsEntry::split;
  table.cuDevResourceGenerateDesc = FakeStreamsEntry::describe;
  table.cuGreenCtxCreate = FakeStreamsEntry::green_create;
  table.cuGreenCtxDestroy = FakeStreamsEntry::green_destroy;
  table.cuGreenCtxGetDevResource = FakeStreamsEntry::green_resource;
  table.cuCtxFromGreenCtx = FakeStreamsEntry::green_context;
  table.cuGreenCtxStreamCreate = FakeStreamsEntry::green_stream;
  table.cuCtxPushCurrent_v2 = FakeStreamsEntry::push;
  table.cuCtxPopCurrent_v2 = FakeStreamsEntry::pop;
  table.cuEventCreate = FakeStreamsEntry::event_create;
  table.cuEventRecord = FakeStreamsEntry::record;
  table.cuEventQuery = FakeStreamsEntry::query;
  table.cuStreamWaitEvent = FakeStreamsEntry::wait;
}

CUcontext FakeDriver::pushed_context() { return pushed.empty() ? nullptr : pushed.back(); }

}  // namespace mpsshim::test
