// SPDX-License-Identifier: Apache-2.0
// What works in no context. Virtual memory and pools belong to the process and to the device that their properties name: only cuInit has been
// called; a context comes later, and goes before the memory does. Streams, events, modules and allocations belong to a context by themselves:
// whoever names one by its handle or address needs none to be current.
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

CUmemAllocationProp exportable_memory() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

void require_no_context() {
  OK(CU(cuInit)(0));
  CUcontext current = nullptr;
  OK(CU(cuCtxGetCurrent)(&current));
  REQUIRE(current == nullptr);
}

// A handle of the same memory, by way of a descriptor.
CUmemGenericAllocationHandle passed_around(CUmemGenericAllocationHandle handle) {
  int fd = -1;
  OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported = 0;
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(fd));  // NOLINT(performance-no-int-to-ptr)
  OK(CU(cuMemImportFromShareableHandle)(&imported, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  return imported;
}

using Calls = std::vector<std::pair<const char*, std::function<CUresult()>>>;

// clang-format off
#define CALL(function, ...) {#function, [&] { return CU(function)(__VA_ARGS__); }}
// clang-format on

// Each gives that result while no context is current.
void expect_of_all(const Calls& calls, CUresult expected) {
  CUcontext left = nullptr;
  OK(CU(cuCtxPopCurrent)(&left));
  std::string others;
  for (const auto& [name, call] : calls) {
    if (const CUresult result = call(); result != expected) others += std::string(" ") + name + " " + std::to_string(result);
  }
  OK(CU(cuCtxPushCurrent)(left));
  CHECK(others == "");  // what gave something else, and what that was
  OK(CU(cuCtxSynchronize)());
}

struct Objects {
  LoadedImage image;
  CUfunction store = image.function("store");
  CUstream stream = new_stream();
  CUevent event = new_event();
  DeviceArray<unsigned> memory{64};
  SharedWord pinned;
};

void use_in_a_context(CUdeviceptr memory) {
  const DeviceContext context;
  OK(CU(cuMemsetD32)(memory, 0x1357, kGranule / 4));
  CHECK(word_at(memory + kGranule - 4) == 0x1357);
}

}  // namespace

TEST_CASE("virtual memory needs no context", "[forwarded]") {
  if (std::getenv("MPSSHIM_TEST_OTHER_DEVICE") != nullptr) {
    MPSSHIM_SKIP("without a context, addresses and imported memory are of the device that the process works on first");
  }
  require_no_context();
  const CUmemAllocationProp properties = exportable_memory();
  size_t granularity = 0;
  OK(CU(cuMemGetAllocationGranularity)(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK(kGranule % granularity == 0);
  CUmemGenericAllocationHandle made = 0;
  OK(CU(cuMemCreate)(&made, kGranule, &properties, 0));
  const CUmemGenericAllocationHandle imported = passed_around(made);
  OK(CU(cuMemRelease)(made));
  CUmemAllocationProp told{};
  OK(CU(cuMemGetAllocationPropertiesFromHandle)(&told, imported));
  CHECK(told.type == CU_MEM_ALLOCATION_TYPE_PINNED);
  CHECK(told.location.id == 0);

  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, 2 * kGranule, 0, 0, 0));
  OK(CU(cuMemMap)(range, kGranule, 0, imported, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(CU(cuMemSetAccess)(range, kGranule, &access, 1));
  unsigned long long flags = 0;
  OK(CU(cuMemGetAccess)(&flags, &access.location, range));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemGenericAllocationHandle retained = 0;
  OK(CU(cuMemRetainAllocationHandle)(&retained, reinterpret_cast<void*>(range)));  // NOLINT(performance-no-int-to-ptr)
  OK(CU(cuMemRelease)(retained));
  OK(CU(cuMemRelease)(imported));

  use_in_a_context(range);  // which takes nothing of it along
  OK(CU(cuMemUnmap)(range, kGranule));
  OK(CU(cuMemAddressFree)(range, 2 * kGranule));
}

TEST_CASE("memory pools need no context", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no pools");
  require_no_context();
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  OK(CU(cuMemPoolCreate)(&pool, &properties));
  cuuint64_t threshold = 1 << 20;
  OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  OK(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CHECK(threshold == 1 << 20);
  CUmemAccess_flags flags{};
  OK(CU(cuMemPoolGetAccess)(&flags, pool, &properties.location));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(CU(cuMemPoolTrimTo)(pool, 0));
  int fd = -1;
  OK(CU(cuMemPoolExportToShareableHandle)(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(fd);
  OK(CU(cuMemPoolDestroy)(pool));
}

TEST_CASE("calls that name a stream by its handle need no current context", "[forwarded]") {
  const DeviceContext context;
  Objects its;
  const CUdeviceptr memory = its.memory.address();
  void* const host = reinterpret_cast<void*>(its.pinned.address());  // NOLINT(performance-no-int-to-ptr)
  CUdeviceptr argument = memory;
  unsigned value = 5;
  void* arguments[] = {&argument, &value};
  unsigned flags = 0;
  int priority = 0;
  unsigned long long id = 0;
  CUcontext of_stream = nullptr;
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = memory;
  rows.dstDevice = memory + 128;
  rows.WidthInBytes = 16;
  rows.Height = 2;
  rows.srcPitch = rows.dstPitch = 32;
  const Calls calls = {
      CALL(cuEventRecord, its.event, its.stream),
      CALL(cuStreamWaitEvent, its.stream, its.event, 0),
      CALL(cuMemsetD8Async, memory, 0, 256, its.stream),
      CALL(cuMemcpyHtoDAsync, memory, host, 64, its.stream),
      CALL(cuMemcpyDtoHAsync, host, memory, 64, its.stream),
      CALL(cuMemcpyDtoDAsync, memory + 64, memory, 64, its.stream),
      CALL(cuMemcpyAsync, memory + 64, memory, 64, its.stream),
      CALL(cuMemcpy2DAsync, &rows, its.stream),
      CALL(cuStreamWriteValue32, its.stream, memory + 252, 1, 0),
      CALL(cuStreamWaitValue32, its.stream, memory + 252, 1, CU_STREAM_WAIT_VALUE_GEQ),
      CALL(
          cuLaunchHostFunc, its.stream, [](void*) {}, nullptr),
      CALL(cuLaunchKernel, its.store, 1, 1, 1, 1, 1, 1, 0, its.stream, arguments, nullptr),
      CALL(cuStreamGetFlags, its.stream, &flags),
      CALL(cuStreamGetPriority, its.stream, &priority),
      CALL(cuStreamGetId, its.stream, &id),
      CALL(cuStreamGetCtx, its.stream, &of_stream),
      CALL(cuStreamSynchronize, its.stream),
      CALL(cuStreamQuery, its.stream),
  };
  expect_of_all(calls, CUDA_SUCCESS);
  CHECK(its.memory[0] == 5);
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CUcontext current = nullptr;
  OK(CU(cuCtxGetCurrent)(&current));
  CHECK(of_stream == current);
}

TEST_CASE("calls that name the NULL stream or the thread's own need a current context", "[forwarded]") {
  const DeviceContext context;
  Objects its;
  const CUdeviceptr memory = its.memory.address();
  CUdeviceptr argument = memory;
  unsigned value = 5;
  void* arguments[] = {&argument, &value};
  unsigned long long id = 0;
  CUcontext of_stream = nullptr;
  const Calls calls = {
      CALL(cuEventRecord, its.event, nullptr),
      CALL(cuMemsetD32Async, memory, 0, 16, nullptr),
      CALL(cuMemcpyHtoDAsync, memory, &value, 4, nullptr),
      CALL(cuLaunchKernel, its.store, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr),
      CALL(cuStreamGetId, nullptr, &id),
      CALL(cuStreamGetCtx, nullptr, &of_stream),
      CALL(cuStreamSynchronize, nullptr),
      CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD),
      CALL(cuStreamQuery, nullptr),
      CALL(cuMemcpyHtoD, memory, &value, 4),
      CALL(cuMemsetD8, memory, 0, 64),
      CALL(cuCtxSynchronize),
  };
  expect_of_all(calls, CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("stream attributes, captures and stream-ordered memory need no current context", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has none of them: libmpsshim.so makes them");
  const DeviceContext context;
  const CUstream stream = new_stream();
  CUstreamAttrValue attribute{};
  CUstreamCaptureStatus status{};
  CUgraph graph = nullptr;
  CUmemoryPool pool = nullptr;
  OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  const Calls calls = {
      CALL(cuStreamGetAttribute, stream, CU_STREAM_ATTRIBUTE_PRIORITY, &attribute),
      CALL(cuStreamIsCapturing, stream, &status),
      CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED),
      CALL(cuStreamEndCapture, stream, &graph),
      CALL(cuGraphDestroy, graph),
      CALL(cuMemAllocAsync, &first, 4096, stream),
      CALL(cuMemAllocFromPoolAsync, &second, 4096, pool, stream),
      CALL(cuMemFreeAsync, first, stream),
      CALL(cuMemFreeAsync, second, stream),
      CALL(cuStreamDestroy, stream),
  };
  expect_of_all(calls, CUDA_SUCCESS);
}

TEST_CASE("calls that name a module, an event or memory need no current context", "[forwarded]") {
  const DeviceContext context;
  const std::string ptx = read_image("kernels.ptx");
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, ptx.c_str()));
  const CUevent event = new_event();
  OK(CU(cuEventRecord)(event, nullptr));
  OK(CU(cuCtxSynchronize)());
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  OK(CU(cuMemAlloc)(&memory, 4096));
  OK(CU(cuMemHostAlloc)(&pinned, 4096, 0));
  CUfunction function = nullptr;
  unsigned count = 0;
  int registers = 0;
  unsigned kind = 0;
  CUmodule found = nullptr;
  Calls calls = {
      CALL(cuModuleGetFunction, &function, module, "store"),
      CALL(cuModuleGetFunctionCount, &count, module),
      CALL(cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function),
      CALL(cuFuncGetModule, &found, function),
      CALL(cuModuleUnload, module),
      CALL(cuEventQuery, event),
      CALL(cuEventSynchronize, event),
      CALL(cuEventDestroy, event),
      CALL(cuPointerGetAttribute, &kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory),
      CALL(cuMemFree, 0),
      CALL(cuMemFree, memory),
      CALL(cuMemFreeHost, pinned),
  };
  const unsigned synchronous = 1;
  if (!is_cpu_driver()) {
    calls.insert(calls.begin(),
                 {"cuPointerSetAttribute", [&] { return CU(cuPointerSetAttribute)(&synchronous, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory); }});
  }
  expect_of_all(calls, CUDA_SUCCESS);
}

TEST_CASE("what a library has in a context needs one that is current", "[forwarded]") {
  const DeviceContext context;
  const std::string ptx = read_image("kernels.ptx");
  CUlibrary library = nullptr;
  OK(CU(cuLibraryLoadData)(&library, ptx.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  OK(CU(cuLibraryGetKernel)(&kernel, library, "store"));
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  size_t offset = 0;
  size_t bytes = 0;
  const Calls calls = {
      CALL(cuLibraryGetModule, &module, library),
      CALL(cuKernelGetFunction, &function, kernel),
      CALL(cuKernelGetParamInfo, kernel, 0, &offset, &bytes),
  };
  expect_of_all(calls, CUDA_ERROR_INVALID_CONTEXT);
  OK(CU(cuLibraryUnload)(library));
}
