// SPDX-License-Identifier: Apache-2.0
#include "tests/wire/support/fake_driver.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/wire/support/fake_work.hpp"

namespace mpsshim::test {

namespace {

FakeDriver* the_driver = nullptr;
thread_local std::vector<CUcontext> pushed;  // contexts, above the executor's own

// As cuFuncSetAttribute and its kin.
CUresult change_function() {
  constexpr int kMoments = 20;  // in which another thread gets its chance to be wrong
  FakeDriver& fake = FakeDriver::current();
  ++fake.function_changes;
  for (int i = 0; i < kMoments; ++i) {
    if (fake.function_users != 0) ++fake.function_conflicts;
    std::this_thread::yield();
  }
  --fake.function_changes;
  return CUDA_SUCCESS;
}

}  // namespace

// The functions behind the table.
struct FakeEntry {
  template <typename Handle>
  static CUresult make(Handle* handle) {
    std::lock_guard lock(the_driver->mutex_);
    *handle = reinterpret_cast<Handle>(the_driver->next_handle_ += 16);
    return CUDA_SUCCESS;
  }

  static CUresult CUDAAPI set_current(CUcontext) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI error_name(CUresult, const char** name) {
    *name = "a driver's error";
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI host_register(void* host, std::size_t bytes, unsigned) {
    the_driver->oracle.note_registered(reinterpret_cast<std::uint64_t>(host), bytes);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI host_unregister(void* host) {
    the_driver->look_for_users("cuMemHostUnregister", reinterpret_cast<std::uint64_t>(host),
                               the_driver->oracle.registered_bytes(reinterpret_cast<std::uint64_t>(host)));
    the_driver->oracle.note_unregistered(reinterpret_cast<std::uint64_t>(host));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI host_pointer(CUdeviceptr* device, void* host, unsigned) {
    *device = reinterpret_cast<CUdeviceptr>(host);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI granularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
    *bytes = 2u << 20;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI reserve(CUdeviceptr* address, std::size_t, std::size_t, CUdeviceptr wanted, unsigned long long) {
    *address = wanted;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI address_free(CUdeviceptr, std::size_t) { return CUDA_SUCCESS; }
  // A handle says no more than what it was made as.
  static CUresult CUDAAPI create(CUmemGenericAllocationHandle* handle, std::size_t, const CUmemAllocationProp* properties, unsigned long long) {
    *handle = 1u + properties->allocFlags.compressionType;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI memory_properties(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
    *properties = {};
    properties->allocFlags.compressionType = static_cast<unsigned char>(handle - 1);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI export_handle(void* fd, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long) {
    *static_cast<int*>(fd) = memfd_create("fake chunk", MFD_CLOEXEC);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI map(CUdeviceptr address, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle, unsigned long long) {
    the_driver->oracle.note_mapped(address, bytes);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI unmap(CUdeviceptr address, std::size_t bytes) {
    the_driver->look_for_users("cuMemUnmap", address, bytes);
    the_driver->oracle.note_unmapped(address);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
    ++the_driver->access_changes;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI release(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI import_external(CUexternalMemory* memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
    make(memory);
    ++the_driver->externals;
    the_driver->oracle.note_imported(*memory, *description);
    close(description->handle.fd);  // it is the driver's now
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI map_external(CUdeviceptr* address, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* buffer) {
    *address = the_driver->oracle.place_external(memory, buffer->size);
    if (*address == 0) return CUDA_ERROR_INVALID_HANDLE;
    ++the_driver->buffers;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI free_external(CUdeviceptr address) {
    --the_driver->buffers;
    the_driver->look_for_users("cuMemFree", address, the_driver->oracle.buffer_bytes(address));
    the_driver->oracle.note_freed(address);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI destroy_external(CUexternalMemory memory) {
    --the_driver->externals;
    the_driver->oracle.note_destroyed(memory);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = 3u << 20;
    *total_bytes = 4u << 20;
    return CUDA_SUCCESS;
  }

  static CUresult CUDAAPI stream_create(CUstream* stream, unsigned, int) { return make(stream); }
  // A green context is its own handle as a context; streams count it.
  static CUresult CUDAAPI device_resource(CUdevice, CUdevResource* resource, CUdevResourceType type) {
    *resource = CUdevResource{};
    resource->type = type;
    resource->sm.smCount = 16;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI split(CUdevResource* result, unsigned* groups, const CUdevResource* input, CUdevResource* remaining, unsigned,
                                unsigned min_count) {
    for (unsigned i = 0; result != nullptr && i < *groups; ++i) {
      result[i] = *input;
      result[i].sm.smCount = min_count;
    }
    if (remaining != nullptr) *remaining = *input;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI describe(CUdevResourceDesc* descriptor, CUdevResource*, unsigned) { return make(descriptor); }
  static CUresult CUDAAPI green_create(CUgreenCtx* green, CUdevResourceDesc, CUdevice, unsigned) {
    ++the_driver->greens;
    return make(green);
  }
  static CUresult CUDAAPI green_destroy(CUgreenCtx) {
    --the_driver->greens;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI green_resource(CUgreenCtx, CUdevResource* resource, CUdevResourceType type) { return device_resource(0, resource, type); }
  static CUresult CUDAAPI green_context(CUcontext* context, CUgreenCtx green) {
    *context = reinterpret_cast<CUcontext>(green);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI green_stream(CUstream* stream, CUgreenCtx green, unsigned, int) {
    make(stream);
    std::lock_guard lock(the_driver->mutex_);
    the_driver->streams_[*stream].context = reinterpret_cast<CUcontext>(green);
    ++the_driver->green_streams;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI stream_destroy(CUstream stream) {
    std::lock_guard lock(the_driver->mutex_);
    if (the_driver->streams_[stream].context != nullptr) --the_driver->green_streams;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI push(CUcontext context) {
    the_driver->begin_green_use(context);
    pushed.push_back(context);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI pop(CUcontext* context) {
    *context = pushed.back();
    the_driver->end_green_use(*context);
    pushed.pop_back();
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI event_create(CUevent* event, unsigned) { return make(event); }
  static CUresult CUDAAPI module_load(CUmodule* module, const void*) { return make(module); }
  static CUresult CUDAAPI get_function(CUfunction* function, CUmodule, const char* name) {
    static std::map<std::string, std::unique_ptr<FakeFunction>> known;
    std::lock_guard lock(the_driver->mutex_);
    std::unique_ptr<FakeFunction>& entry = known[name];
    if (!entry)
      entry = std::make_unique<FakeFunction>(
          FakeFunction{name, name == std::string(kWriter) ? std::vector<std::size_t>{8, 8, 4, 4} : std::vector<std::size_t>{}});
    *function = reinterpret_cast<CUfunction>(entry.get());
    return CUDA_SUCCESS;
  }

  static CUresult CUDAAPI launch(CUfunction handle, unsigned grid_x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream stream,
                                 void** parameters, void**) {
    if (the_driver->launch_result != CUDA_SUCCESS) return the_driver->launch_result;
    FakeCall call(FakeCall::launch);
    call.function = reinterpret_cast<const FakeFunction*>(handle);
    call.grid_x = grid_x;
    call.parameters = gather(*call.function, parameters);
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI launch_ex(const CUlaunchConfig* config, CUfunction handle, void** parameters, void** extra) {
    return launch(handle, config->gridDimX, 1, 1, 1, 1, 1, 0, config->hStream, parameters, extra);
  }
  static CUresult CUDAAPI launch_cooperative(CUfunction handle, unsigned grid_x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                             CUstream stream, void** parameters) {
    return launch(handle, grid_x, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }
  static CUresult copy(std::uint64_t destination, std::uint64_t source, std::size_t bytes, CUstream stream) {
    FakeCall call(FakeCall::copy);
    call.destination = destination;
    call.source = source;
    call.bytes_or_value = bytes;
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI copy_any(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) { return copy(to, from, bytes, stream); }
  static CUresult CUDAAPI copy_in(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    return copy(to, reinterpret_cast<std::uint64_t>(from), bytes, stream);
  }
  static CUresult CUDAAPI copy_out(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(reinterpret_cast<std::uint64_t>(to), from, bytes, stream);
  }
  // From the first to the last byte of each end; of an array: its handle.
  static CUresult CUDAAPI copy_box(const CUDA_MEMCPY3D* box, CUstream stream) {
    const auto first = [](CUmemorytype type, CUarray array, const void* host, CUdeviceptr device, std::uint64_t before) -> std::uint64_t {
      if (type == CU_MEMORYTYPE_ARRAY) return reinterpret_cast<std::uint64_t>(array);
      return (type == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uint64_t>(host) : device) + before;
    };
    const auto to = first(box->dstMemoryType, box->dstArray, box->dstHost, box->dstDevice,
                          (box->dstZ * box->dstHeight + box->dstY) * box->dstPitch + box->dstXInBytes);
    const auto from = first(box->srcMemoryType, box->srcArray, box->srcHost, box->srcDevice,
                            (box->srcZ * box->srcHeight + box->srcY) * box->srcPitch + box->srcXInBytes);
    return copy(to, from, box->WidthInBytes * box->Height * box->Depth, stream);
  }
  static CUresult CUDAAPI copy_plane(const CUDA_MEMCPY2D* plane, CUstream stream) {
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = plane->srcMemoryType;
    box.srcHost = plane->srcHost;
    box.srcDevice = plane->srcDevice;
    box.dstMemoryType = plane->dstMemoryType;
    box.dstHost = plane->dstHost;
    box.dstDevice = plane->dstDevice;
    box.WidthInBytes = plane->WidthInBytes;
    box.Height = plane->Height;
    box.Depth = 1;
    return copy_box(&box, stream);
  }
  static CUresult fill(CUdeviceptr destination, std::uint64_t value, CUstream stream) {
    FakeCall call(FakeCall::fill);
    call.destination = destination;
    call.bytes_or_value = value;
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI fill8(CUdeviceptr to, unsigned char value, std::size_t, CUstream stream) { return fill(to, value, stream); }
  static CUresult CUDAAPI fill16(CUdeviceptr to, unsigned short value, std::size_t, CUstream stream) { return fill(to, value, stream); }
  static CUresult CUDAAPI fill32(CUdeviceptr to, unsigned value, std::size_t, CUstream stream) { return fill(to, value, stream); }
  static CUresult CUDAAPI fill2d8(CUdeviceptr to, std::size_t, unsigned char value, std::size_t, std::size_t, CUstream stream) {
    return fill(to, value, stream);
  }
  static CUresult CUDAAPI fill2d16(CUdeviceptr to, std::size_t, unsigned short value, std::size_t, std::size_t, CUstream stream) {
    return fill(to, value, stream);
  }
  static CUresult CUDAAPI fill2d32(CUdeviceptr to, std::size_t, unsigned value, std::size_t, std::size_t, CUstream stream) {
    return fill(to, value, stream);
  }
  static CUresult CUDAAPI record(CUevent event, CUstream stream) {
    FakeCall call(FakeCall::record);
    call.event = event;
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI wait(CUstream stream, CUevent event, unsigned) {
    FakeCall call(FakeCall::wait);
    call.event = event;
    the_driver->submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI write(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
    const CUstreamBatchMemOpParams operation = write_operation(address, value);
    the_driver->submit(stream, write_call(operation), [operation] { write_value(operation); });
    return CUDA_SUCCESS;
  }
  static CUresult bind(void* reference, std::uint64_t source, std::uint64_t bytes) {
    FakeCall call(FakeCall::bind);
    call.destination = reinterpret_cast<std::uint64_t>(reference);
    call.source = source;
    call.bytes_or_value = bytes;
    std::lock_guard lock(the_driver->mutex_);
    the_driver->calls_.push_back(std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI bind_linear(std::size_t* offset, CUtexref texture, CUdeviceptr address, std::size_t bytes) {
    *offset = 0;
    return bind(texture, address, bytes);
  }
  static CUresult CUDAAPI bind_array(CUtexref texture, CUarray array, unsigned) { return bind(texture, reinterpret_cast<std::uint64_t>(array), 0); }
  static CUresult CUDAAPI bind_surface(CUsurfref surface, CUarray array, unsigned) {
    return bind(surface, reinterpret_cast<std::uint64_t>(array), 0);
  }
  static CUresult CUDAAPI batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned) {
    if (!the_driver->has_batches) return CUDA_ERROR_NOT_SUPPORTED;
    const std::vector<CUstreamBatchMemOpParams> writes(operations, operations + count);
    std::vector<FakeCall> calls;
    for (const auto& operation : writes) calls.push_back(write_call(operation));
    the_driver->submit_all(stream, std::move(calls), [writes] {
      for (const auto& operation : writes) write_value(operation);
    });
    return CUDA_SUCCESS;
  }
};

FakeDriver::FakeDriver() { the_driver = this; }
FakeDriver::~FakeDriver() {
  const std::vector<std::string> violations = oracle.take_violations();
  for (const std::string& violation : violations) std::fprintf(stderr, "The driver was given what it must not have: %s\n", violation.c_str());
  if (!violations.empty()) std::abort();
  the_driver = nullptr;
}

FakeDriver& FakeDriver::current() { return *the_driver; }
CUcontext FakeDriver::pushed_context() { return pushed.empty() ? nullptr : pushed.back(); }

std::unique_ptr<broker::Driver> FakeDriver::driver() const {
  DriverTable table;
  table.cuCtxSetCurrent = FakeEntry::set_current;
  table.cuGetErrorName = FakeEntry::error_name;
  table.cuMemHostRegister_v2 = FakeEntry::host_register;
  table.cuMemHostUnregister = FakeEntry::host_unregister;
  table.cuMemHostGetDevicePointer_v2 = FakeEntry::host_pointer;
  table.cuMemGetAllocationGranularity = FakeEntry::granularity;
  table.cuMemAddressReserve = FakeEntry::reserve;
  table.cuMemAddressFree = FakeEntry::address_free;
  table.cuMemCreate = FakeEntry::create;
  table.cuMemGetAllocationPropertiesFromHandle = FakeEntry::memory_properties;
  table.cuMemExportToShareableHandle = FakeEntry::export_handle;
  table.cuMemMap = FakeEntry::map;
  table.cuMemUnmap = FakeEntry::unmap;
  table.cuMemSetAccess = FakeEntry::set_access;
  table.cuMemRelease = FakeEntry::release;
  table.cuImportExternalMemory = FakeEntry::import_external;
  table.cuExternalMemoryGetMappedBuffer = FakeEntry::map_external;
  table.cuMemFree_v2 = FakeEntry::free_external;
  table.cuDestroyExternalMemory = FakeEntry::destroy_external;
  table.cuMemGetInfo_v2 = FakeEntry::memory_info;
  table.cuStreamCreate = [](CUstream* stream, unsigned flags) { return FakeEntry::stream_create(stream, flags, 0); };
  table.cuStreamCreateWithPriority = FakeEntry::stream_create;
  table.cuStreamDestroy_v2 = FakeEntry::stream_destroy;
  table.cuStreamSynchronize = [](CUstream) { return CUDA_SUCCESS; };  // asked before there is work that is held
  table.cuDeviceGetDevResource = FakeEntry::device_resource;
  table.cuDevSmResourceSplitByCount = FakeEntry::split;
  table.cuDevResourceGenerateDesc = FakeEntry::describe;
  table.cuGreenCtxCreate = FakeEntry::green_create;
  table.cuGreenCtxDestroy = FakeEntry::green_destroy;
  table.cuGreenCtxGetDevResource = FakeEntry::green_resource;
  table.cuCtxFromGreenCtx = FakeEntry::green_context;
  table.cuGreenCtxStreamCreate = FakeEntry::green_stream;
  table.cuCtxPushCurrent_v2 = FakeEntry::push;
  table.cuCtxPopCurrent_v2 = FakeEntry::pop;
  table.cuEventCreate = FakeEntry::event_create;
  table.cuModuleLoadData = FakeEntry::module_load;
  table.cuModuleGetFunction = FakeEntry::get_function;
  table.cuLaunchKernel = FakeEntry::launch;
  table.cuFuncGetAttribute = [](int* value, CUfunction_attribute, CUfunction) { return *value = 0, change_function(); };
  table.cuFuncSetAttribute = [](CUfunction, CUfunction_attribute, int) { return change_function(); };
  table.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = [](int* blocks, CUfunction, int, std::size_t, unsigned) {
    return *blocks = 1, change_function();
  };
  table.cuLaunchKernelEx = FakeEntry::launch_ex;
  table.cuLaunchCooperativeKernel = FakeEntry::launch_cooperative;
  table.cuMemcpyAsync = FakeEntry::copy_any;
  table.cuMemcpyDtoDAsync_v2 = FakeEntry::copy_any;
  table.cuMemcpyHtoDAsync_v2 = FakeEntry::copy_in;
  table.cuMemcpyDtoHAsync_v2 = FakeEntry::copy_out;
  table.cuMemcpy3DAsync_v2 = FakeEntry::copy_box;
  table.cuMemcpy2DAsync_v2 = FakeEntry::copy_plane;
  table.cuMemsetD8Async = FakeEntry::fill8;
  table.cuMemsetD16Async = FakeEntry::fill16;
  table.cuMemsetD32Async = FakeEntry::fill32;
  table.cuMemsetD2D8Async = FakeEntry::fill2d8;
  table.cuMemsetD2D16Async = FakeEntry::fill2d16;
  table.cuMemsetD2D32Async = FakeEntry::fill2d32;
  table.cuEventRecord = FakeEntry::record;
  table.cuStreamWaitEvent = FakeEntry::wait;
  table.cuStreamWriteValue32_v2 = FakeEntry::write;
  table.cuStreamBatchMemOp_v2 = FakeEntry::batch;
  table.cuTexRefSetAddress_v2 = FakeEntry::bind_linear;
  table.cuTexRefSetArray = FakeEntry::bind_array;
  table.cuSurfRefSetArray = FakeEntry::bind_surface;
  FakeGraphs::fill(table);
  FakeArrays::fill(table);
  guard_addresses(table);
  return broker::Driver::from_table(table);
}

void FakeDriver::submit(CUstream stream, FakeCall call, std::function<void()> effect) {
  std::vector<FakeCall> calls;
  calls.push_back(std::move(call));
  submit_all(stream, std::move(calls), std::move(effect));
}

void FakeDriver::begin_green_use(CUcontext context) {
  {
    const std::lock_guard lock(mutex_);
    auto& users = green_users_[context];
    if (users.size() != users.count(std::this_thread::get_id())) ++green_conflicts;
    users.insert(std::this_thread::get_id());
  }
  std::this_thread::yield();  // so that another thread gets its chance to be wrong
}

void FakeDriver::end_green_use(CUcontext context) {
  const std::lock_guard lock(mutex_);
  auto& users = green_users_[context];
  users.erase(users.find(std::this_thread::get_id()));
}

void FakeDriver::submit_all(CUstream stream, std::vector<FakeCall> calls, std::function<void()> effect) {
  CUcontext context = nullptr;
  {
    const std::lock_guard lock(mutex_);
    context = streams_[stream].context;
  }
  if (context != nullptr) begin_green_use(context);
  {
    const std::lock_guard lock(mutex_);
    for (FakeCall& call : calls) {
      call.stream = stream;
      call.stream_context = context;
    }
    if (!effect) effect = [] {};
    if (holding_) {
      // One with an event is alone in its submission.
      std::uint64_t count = 0;
      if (!calls.empty() && calls.front().kind == FakeCall::record) count = ++records_[calls.front().event].made;
      if (!calls.empty() && calls.front().kind == FakeCall::wait) count = records_[calls.front().event].made;
      streams_[stream].pending.push_back({std::move(effect), calls, count});
    } else {
      effect();
    }
    for (FakeCall& call : calls) calls_.push_back(std::move(call));
  }
  if (context != nullptr) end_green_use(context);
}

std::vector<FakeCall> FakeDriver::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

std::vector<FakeCall> FakeDriver::calls(FakeCall::Kind kind) const {
  std::vector<FakeCall> matching;
  for (FakeCall& call : calls()) {
    if (call.kind == kind) matching.push_back(std::move(call));
  }
  return matching;
}

void FakeDriver::forget_calls() {
  std::lock_guard lock(mutex_);
  calls_.clear();
}

void FakeDriver::hold_work() {
  std::lock_guard lock(mutex_);
  holding_ = true;
}

bool FakeDriver::may_end(const Submission& submission) const {
  if (!keeps_event_order || submission.calls.empty() || submission.calls.front().kind != FakeCall::wait) return true;
  const auto records = records_.find(submission.calls.front().event);
  return records == records_.end() || records->second.ended >= submission.count;
}

void FakeDriver::end_first(Stream& stream) {
  Submission& first = stream.pending.front();
  first.effect();
  if (!first.calls.empty() && first.calls.front().kind == FakeCall::record) {
    std::uint64_t& ended = records_[first.calls.front().event].ended;
    ended = std::max(ended, first.count);
  }
  stream.pending.pop_front();
}

void FakeDriver::complete(std::size_t submissions) {
  std::lock_guard lock(mutex_);
  std::map<CUstream, std::size_t> ended;
  for (bool any = true; any;) {
    any = false;
    for (auto& [handle, stream] : streams_) {
      for (std::size_t& count = ended[handle]; count < submissions && !stream.pending.empty() && may_end(stream.pending.front()); ++count) {
        end_first(stream);
        any = true;
      }
    }
  }
}

void FakeDriver::look_for_users(const char* where, std::uint64_t begin, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto is_inside = [&](std::uint64_t address) { return address - begin < size_bytes; };
  for (const auto& [handle, stream] : streams_) {
    for (const Submission& submission : stream.pending) {
      for (const FakeCall& call : submission.calls) {
        const bool has_source = call.kind == FakeCall::copy;
        const bool has_destination = has_source || call.kind == FakeCall::fill || call.kind == FakeCall::write;
        if ((has_destination && is_inside(call.destination)) || (has_source && is_inside(call.source)))
          return oracle.report(std::string(where) + ": work that has not ended names what ends");
      }
    }
  }
}

void FakeDriver::resume_work() {
  {
    std::lock_guard lock(mutex_);
    holding_ = false;
  }
  complete();
}

}  // namespace mpsshim::test
