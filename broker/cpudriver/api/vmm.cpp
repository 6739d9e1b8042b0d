// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Virtual Memory Management".
#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/memory/physical_memory.hpp"
#include "broker/cpudriver/memory/virtual_memory.hpp"

using namespace mpsshim::cpudriver;

namespace {

bool is_device_memory(const CUmemAllocationProp& prop) {
  return prop.type == CU_MEM_ALLOCATION_TYPE_PINNED && prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

CUresult check_properties(const CUmemAllocationProp* prop) {
  if (prop == nullptr || !is_device_memory(*prop)) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(prop->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  const auto handles = prop->requestedHandleTypes;
  if (handles != CU_MEM_HANDLE_TYPE_NONE && handles != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                               CUmemAllocationGranularity_flags option) {
  return entry(Needs::initialised, [&]() -> CUresult {
    const bool option_is_good =
        option == CU_MEM_ALLOC_GRANULARITY_MINIMUM || option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    if (granularity == nullptr || !option_is_good) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = check_properties(prop);
    if (result == CUDA_SUCCESS) *granularity = PhysicalMemory::kGranularity;
    return result;
  });
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                     unsigned long long flags) {
  return entry(Needs::device, [&]() -> CUresult {
    if (ptr == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t begin = 0;
    const CUresult result = VirtualMemory::get().reserve(size, alignment, addr, begin);
    if (result == CUDA_SUCCESS) *ptr = begin;
    return result;
  });
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  return entry(Needs::device, [&] { return VirtualMemory::get().free(ptr, size); });
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                             unsigned long long flags) {
  return entry(Needs::device, [&]() -> CUresult {
    if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult checked = check_properties(prop);
    if (checked != CUDA_SUCCESS) return checked;
    if (!Devices::get().is_used(prop->location.id)) return CUDA_ERROR_NOT_SUPPORTED;  // a process computes on one
    if (size == 0 || size % PhysicalMemory::kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
    if (prop->allocFlags.compressionType > CU_MEM_ALLOCATION_COMP_GENERIC) return CUDA_ERROR_INVALID_VALUE;
    if (prop->allocFlags.usage != 0) return CUDA_ERROR_INVALID_VALUE;
    const PhysicalMemory::Properties properties{prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                prop->allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_GENERIC};
    std::shared_ptr<PhysicalMemory> memory;
    const CUresult result = PhysicalMemory::create(size, properties, memory);
    if (result == CUDA_SUCCESS) *handle = MemoryHandles::get().add(std::move(memory));
    return result;
  });
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  return entry(Needs::device, [&] {
    return MemoryHandles::get().release(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  return entry(Needs::device, [&]() -> CUresult {
    auto memory = MemoryHandles::get().find(handle);
    if (memory == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return VirtualMemory::get().map(ptr, size, offset, std::move(memory));
  });
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
  return entry(Needs::device, [&] { return VirtualMemory::get().unmap(ptr, size); });
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  return entry(Needs::device, [&]() -> CUresult {
    // The process computes on one device, so one description; a second could only contradict it.
    if (desc == nullptr || count != 1) return CUDA_ERROR_INVALID_VALUE;
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(desc->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (!Devices::get().is_used(desc->location.id)) return CUDA_ERROR_NOT_SUPPORTED;
    switch (desc->flags) {
      case CU_MEM_ACCESS_FLAGS_PROT_NONE:
      case CU_MEM_ACCESS_FLAGS_PROT_READ:
      case CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
        return VirtualMemory::get().set_access(ptr, size, desc->flags);
      case CU_MEM_ACCESS_FLAGS_PROT_MAX:
        break;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  return entry(Needs::device, [&]() -> CUresult {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !is_device(location->id)) return CUDA_ERROR_INVALID_VALUE;
    if (!Devices::get().is_used(location->id)) return CUDA_ERROR_NOT_SUPPORTED;
    CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (VirtualMemory::get().mapped_at(ptr, &access) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = access;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType handleType, unsigned long long flags) {
  return entry(Needs::device, [&]() -> CUresult {
    if (shareableHandle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    const auto memory = MemoryHandles::get().find(handle);
    if (memory == nullptr || !memory->is_exportable()) return CUDA_ERROR_INVALID_VALUE;
    const int fd = memory->duplicate_fd();
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(shareableHandle) = fd;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                                CUmemAllocationHandleType shHandleType) {
  return entry(Needs::device, [&]() -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    std::shared_ptr<PhysicalMemory> memory;
    const auto fd = static_cast<int>(reinterpret_cast<std::intptr_t>(osHandle));
    const CUresult result = PhysicalMemory::import(fd, memory);
    if (result == CUDA_SUCCESS) *handle = MemoryHandles::get().add(std::move(memory));
    return result;
  });
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                        CUmemGenericAllocationHandle handle) {
  return entry(Needs::device, [&] {
    const auto memory = MemoryHandles::get().find(handle);
    if (prop == nullptr || memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *prop = {};
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->requestedHandleTypes =
        memory->is_exportable() ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, Devices::get().used()};
    prop->allocFlags.compressionType = memory->is_compressible() ? CU_MEM_ALLOCATION_COMP_GENERIC : CU_MEM_ALLOCATION_COMP_NONE;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  return entry(Needs::device, [&] {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto memory = VirtualMemory::get().mapped_at(reinterpret_cast<std::uint64_t>(addr));
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *handle = MemoryHandles::get().retain(memory);
    return CUDA_SUCCESS;
  });
}
