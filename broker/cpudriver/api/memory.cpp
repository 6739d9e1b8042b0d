// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Memory Management", what allocates, frees and describes.
#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/config.hpp"
#include "broker/cpudriver/device/attributes.hpp"
#include "broker/cpudriver/memory/allocations.hpp"
#include "broker/cpudriver/memory/external_memory.hpp"
#include "broker/cpudriver/memory/physical_memory.hpp"

using namespace mpsshim::cpudriver;

namespace {

constexpr unsigned kHostAllocFlags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned kHostRegisterFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                        CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

}  // namespace

CUresult CUDAAPI cuMemGetInfo(size_t* free, size_t* total) {
  return entry(Needs::context, [&] {
    if (free != nullptr) *free = MemoryBudget::get().free_bytes();
    if (total != nullptr) *total = Config::get().memory_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* dptr, size_t bytesize) {
  return entry(Needs::context, [&]() -> CUresult {
    if (dptr == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Scheduler::get().wait_for_windows();
    std::uint64_t address = 0;
    const CUresult result = allocate_device(bytesize, MemoryKind::device, address);
    if (result == CUDA_SUCCESS) *dptr = address;
    return result;
  });
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                                 unsigned int ElementSizeBytes) {
  return entry(Needs::context, [&]() -> CUresult {
    const bool element_is_good = ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
    if (dptr == nullptr || pPitch == nullptr || WidthInBytes == 0 || Height == 0 || !element_is_good) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto alignment = static_cast<std::size_t>(attribute_of(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
    const std::size_t pitch = (WidthInBytes + alignment - 1) / alignment * alignment;
    std::size_t bytes = 0;
    if (pitch < WidthInBytes || __builtin_mul_overflow(pitch, Height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    std::uint64_t address = 0;
    const CUresult result = allocate_device(bytes, MemoryKind::device, address);
    if (result != CUDA_SUCCESS) return result;
    *dptr = address;
    *pPitch = pitch;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  return entry(Needs::context, [&]() -> CUresult {
    if (dptr == nullptr || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t address = 0;
    const CUresult result = allocate_device(bytesize, MemoryKind::managed, address);
    if (result == CUDA_SUCCESS) *dptr = address;
    return result;
  });
}

CUresult CUDAAPI cuMemFree(CUdeviceptr dptr) {
  return entry(Needs::handle, [&]() -> CUresult {
    if (dptr == 0) return CUDA_SUCCESS;
    const auto range = MemoryMap::get().containing(dptr);
    if (!range || range->begin != dptr) return CUDA_ERROR_INVALID_VALUE;
    const bool is_external = range->kind == MemoryKind::external;
    if (range->kind != MemoryKind::device && range->kind != MemoryKind::managed && !is_external) return CUDA_ERROR_INVALID_VALUE;
    const Scheduler::QuietWindow window(Scheduler::get(), false);
    if (is_external) return ExternalMemory::unmap(dptr);
    return free_device(dptr, range->kind);
  });
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  return entry(Needs::context, [&] {
    const auto range = MemoryMap::get().containing(dptr);
    if (!range) return CUDA_ERROR_NOT_FOUND;
    if (pbase != nullptr) *pbase = range->begin;
    if (psize != nullptr) *psize = range->size;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  return entry(Needs::context, [&]() -> CUresult {
    if (pp == nullptr || (Flags & ~kHostAllocFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    Scheduler::get().wait_for_windows();
    return allocate_pinned(bytesize, Flags, *pp);
  });
}

CUresult CUDAAPI cuMemAllocHost(void** pp, size_t bytesize) { return cuMemHostAlloc(pp, bytesize, 0); }

CUresult CUDAAPI cuMemFreeHost(void* p) {
  return entry(Needs::handle, [&]() -> CUresult {
    if (p == nullptr) return CUDA_SUCCESS;
    const Scheduler::QuietWindow window(Scheduler::get(), false);
    return free_pinned(p);
  });
}

CUresult CUDAAPI cuMemHostRegister(void* p, size_t bytesize, unsigned int Flags) {
  return entry(Needs::context, [&]() -> CUresult {
    if ((Flags & ~kHostRegisterFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    Scheduler::get().wait_for_windows();
    return register_host(p, bytesize, Flags);
  });
}

CUresult CUDAAPI cuMemHostUnregister(void* p) {
  return entry(Needs::handle, [&]() -> CUresult {
    const Scheduler::QuietWindow window(Scheduler::get(), false);
    return unregister_host(p);
  });
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  return entry(Needs::context, [&] {
    if (pdptr == nullptr || Flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto range = MemoryMap::get().containing(reinterpret_cast<std::uint64_t>(p));
    if (!range || !range->is_host()) return CUDA_ERROR_INVALID_VALUE;
    *pdptr = reinterpret_cast<CUdeviceptr>(p);  // one address space
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  return entry(Needs::context, [&] {
    if (pFlags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto range = MemoryMap::get().containing(reinterpret_cast<std::uint64_t>(p));
    if (!range || !range->is_host()) return CUDA_ERROR_INVALID_VALUE;
    *pFlags = range->flags | CU_MEMHOSTALLOC_DEVICEMAP;  // with unified addressing all of it is mapped
    return CUDA_SUCCESS;
  });
}
