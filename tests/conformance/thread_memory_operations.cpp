// SPDX-License-Identifier: Apache-2.0
// What threads do with memory of every kind.
#include <algorithm>

#include "thread_steps.hpp"

namespace mpsshim::test {

namespace {

// --- memory ---

void copy_memory(Worker& worker) {
  const unsigned value = worker.below(1u << 30);
  std::fill_n(worker.pages, Worker::kWords, value);
  STEP(worker, cuMemcpyHtoD, worker.device, worker.pages, Worker::kBytes);
  std::fill_n(worker.pages, Worker::kWords, 0);
  STEP(worker, cuMemcpyDtoH, worker.pages, worker.device, Worker::kBytes);
  worker.expect_words(own_pages(worker), value, "copied there and back");
  STEP(worker, cuMemcpyDtoH, worker.pages, worker.shared.pattern.address(), SharedObjects::kPatternWords * sizeof(unsigned));
  worker.expect_words({worker.pages, SharedObjects::kPatternWords}, SharedObjects::kPattern, "read by everybody");
}

void copy_in_streams(Worker& worker) {
  const CUstream stream = worker.any_stream();
  const unsigned value = worker.below(1u << 30);
  std::fill_n(worker.pinned, Worker::kWords, value);
  STEP(worker, cuMemcpyHtoDAsync, worker.device, worker.pinned, Worker::kBytes, stream);
  STEP(worker, cuMemcpyDtoDAsync, worker.device + Worker::kBytes, worker.device, Worker::kBytes, stream);
  STEP(worker, cuMemcpyDtoHAsync, worker.pinned, worker.device + Worker::kBytes, Worker::kBytes, stream);
  STEP(worker, cuStreamSynchronize, stream);
  worker.expect_words(own_pinned(worker), value, "copied in a stream");
}

void fill_memory(Worker& worker) {
  const CUstream stream = worker.any_stream();
  const unsigned value = worker.below(1u << 30);
  STEP(worker, cuMemsetD32Async, worker.device, value, Worker::kWords, stream);
  STEP(worker, cuMemcpyDtoHAsync, worker.pinned, worker.device, Worker::kBytes, stream);
  STEP(worker, cuStreamSynchronize, stream);
  worker.expect_words(own_pinned(worker), value, "filled in a stream");
}

void allocate_memory(Worker& worker) {
  CUdeviceptr made = 0;
  const unsigned value = worker.below(1u << 30);
  STEP(worker, cuMemAlloc, &made, worker.below(4) == 0 ? size_t{3} << 20 : Worker::kBytes);
  STEP(worker, cuMemsetD32, made, value, Worker::kWords);
  STEP(worker, cuMemcpyDtoH, worker.pages, made, Worker::kBytes);
  worker.expect_words(own_pages(worker), value, "allocated");
  STEP(worker, cuMemFree, made);
}

void allocate_in_streams(Worker& worker) {
  const CUstream stream = worker.any_stream();
  CUdeviceptr made = 0;
  const unsigned value = worker.below(1u << 30);
  STEP(worker, cuMemAllocAsync, &made, Worker::kBytes, stream);
  STEP(worker, cuMemsetD32Async, made, value, Worker::kWords, stream);
  STEP(worker, cuMemcpyDtoHAsync, worker.pinned, made, Worker::kBytes, stream);
  STEP(worker, cuMemFreeAsync, made, stream);
  STEP(worker, cuStreamSynchronize, stream);
  worker.expect_words(own_pinned(worker), value, "allocated in a stream");
}

void use_pools(Worker& worker) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool = nullptr;
  CUdeviceptr made = 0;
  STEP(worker, cuMemPoolCreate, &pool, &properties);
  STEP(worker, cuMemAllocFromPoolAsync, &made, Worker::kBytes, pool, worker.stream);
  STEP(worker, cuMemsetD32Async, made, 1, Worker::kWords, worker.stream);
  STEP(worker, cuMemFreeAsync, made, worker.stream);
  STEP(worker, cuMemPoolTrimTo, pool, 0);
  STEP(worker, cuMemPoolDestroy, pool);
}

void allocate_host_memory(Worker& worker) {
  void* made = nullptr;
  STEP(worker, cuMemHostAlloc, &made, Worker::kBytes, CU_MEMHOSTALLOC_DEVICEMAP);
  auto* const word = static_cast<volatile unsigned*>(made);
  *word = 0;
  const CUfunction store = worker.shared.store;
  CUdeviceptr address = reinterpret_cast<CUdeviceptr>(made);
  unsigned value = 7 + worker.below(1000);
  void* arguments[] = {&address, &value};
  STEP(worker, cuLaunchKernel, store, 1, 1, 1, 1, 1, 1, 0, worker.stream, arguments, nullptr);
  STEP(worker, cuStreamSynchronize, worker.stream);
  const unsigned stored = *word;
  worker.expect_words({&stored, 1}, value, "in host memory");
  STEP(worker, cuMemFreeHost, made);
}

void register_memory(Worker& worker) {
  const unsigned value = worker.below(1u << 30);
  STEP(worker, cuMemHostRegister, worker.pages, Worker::kBytes, 0);
  STEP(worker, cuMemsetD32Async, worker.device, value, Worker::kWords, worker.stream);
  STEP(worker, cuMemcpyDtoHAsync, worker.pages, worker.device, Worker::kBytes, worker.stream);
  STEP(worker, cuStreamSynchronize, worker.stream);
  worker.expect_words(own_pages(worker), value, "in registered memory");
  STEP(worker, cuMemHostUnregister, worker.pages);
}

void allocate_managed_memory(Worker& worker) {
  CUdeviceptr made = 0;
  STEP(worker, cuMemAllocManaged, &made, Worker::kBytes, CU_MEM_ATTACH_GLOBAL);
  STEP(worker, cuMemsetD32Async, made, 9, Worker::kWords, worker.stream);
  STEP(worker, cuStreamSynchronize, worker.stream);
  STEP(worker, cuMemcpyDtoH, worker.pages, made, Worker::kBytes);
  worker.expect_words(own_pages(worker), 9, "in managed memory");
  STEP(worker, cuMemFree, made);
}

void map_memory(Worker& worker) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle memory = 0;
  STEP(worker, cuMemAddressReserve, &range, kGranule, 0, 0, 0);
  STEP(worker, cuMemCreate, &memory, kGranule, &properties, 0);
  STEP(worker, cuMemMap, range, kGranule, 0, memory, 0);
  STEP(worker, cuMemSetAccess, range, kGranule, &access, 1);
  STEP(worker, cuMemsetD32, range, 0xbeef, Worker::kWords);
  STEP(worker, cuMemcpyDtoH, worker.pages, range, Worker::kBytes);
  worker.expect_words(own_pages(worker), 0xbeef, "mapped");
  STEP(worker, cuMemUnmap, range, kGranule);
  STEP(worker, cuMemRelease, memory);
  STEP(worker, cuMemAddressFree, range, kGranule);
}

void use_arrays(Worker& worker) {
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = 64;
  shape.Height = 64;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  shape.NumChannels = 1;
  CUarray made = nullptr;
  STEP(worker, cuArrayCreate, &made, &shape);
  const unsigned value = worker.below(1u << 30);
  std::fill_n(worker.pages, Worker::kWords, value);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = worker.pages;
  copy.srcPitch = copy.WidthInBytes = 64 * sizeof(unsigned);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = made;
  copy.Height = 64;
  STEP(worker, cuMemcpy2D, &copy);
  std::fill_n(worker.pages, Worker::kWords, 0);
  CUDA_MEMCPY2D back{};
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = made;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = worker.pages;
  back.dstPitch = back.WidthInBytes = copy.WidthInBytes;
  back.Height = copy.Height;
  STEP(worker, cuMemcpy2D, &back);
  worker.expect_words(own_pages(worker), value, "in an array");
  STEP(worker, cuArrayDestroy, made);
}

void ask_of_addresses(Worker& worker) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  unsigned type = 0;
  CUcontext context = nullptr;
  const CUdeviceptr address = worker.shared.pattern.address() + 64;
  STEP(worker, cuMemGetAddressRange, &base, &bytes, address);
  STEP(worker, cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  STEP(worker, cuPointerGetAttribute, &context, CU_POINTER_ATTRIBUTE_CONTEXT, reinterpret_cast<CUdeviceptr>(worker.pinned));
  const bool is_right = base == address - 64 && type == CU_MEMORYTYPE_DEVICE && context == worker.shared.current();
  if (!is_right) worker.expect(CUDA_ERROR_UNKNOWN);
}

void ask_of_free_memory(Worker& worker) {
  size_t free_bytes = 0;
  size_t total = 0;
  STEP(worker, cuMemGetInfo, &free_bytes, &total);
  if (free_bytes > total) worker.expect(CUDA_ERROR_UNKNOWN);
}

constexpr Operation kMemoryOperations[] = {
    {"copy", copy_memory},
    {"copy in streams", copy_in_streams},
    {"fill in streams", fill_memory},
    {"allocate memory", allocate_memory},
    {"allocate in streams", allocate_in_streams, false},
    {"use pools", use_pools, false},
    {"allocate host memory", allocate_host_memory},
    {"register memory", register_memory},
    {"allocate managed memory", allocate_managed_memory},
    {"map memory", map_memory},
    {"use arrays", use_arrays},
    {"ask of addresses", ask_of_addresses},
    {"ask of free memory", ask_of_free_memory},
};

}  // namespace

std::span<const Operation> memory_operations() { return kMemoryOperations; }

}  // namespace mpsshim::test
