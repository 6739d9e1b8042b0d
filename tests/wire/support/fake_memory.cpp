// SPDX-License-Identifier: Apache-2.0
// Memory of the fake driver, which is addresses only: what is mapped, registered and imported the oracle is told.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/wire/support/fake_work.hpp"

namespace mpsshim::test {

// The functions behind the table.
struct FakeMemoryEntry {
  static CUresult CUDAAPI host_register(void* host, std::size_t bytes, unsigned) {
    FakeDriver::current().oracle.note_registered(reinterpret_cast<std::uint64_t>(host), bytes);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI host_unregister(void* host) {
    FakeDriver::current().look_for_users("cuMemHostUnregister", reinterpret_cast<std::uint64_t>(host),
                               FakeDriver::current().oracle.registered_bytes(reinterpret_cast<std::uint64_t>(host)));
    FakeDriver::current().oracle.note_unregistered(reinterpret_cast<std::uint64_t>(host));
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
    FakeDriver::current().oracle.note_mapped(address, bytes);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI unmap(CUdeviceptr address, std::size_t bytes) {
    FakeDriver::current().look_for_users("cuMemUnmap", address, bytes);
    FakeDriver::current().oracle.note_unmapped(address);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
    ++FakeDriver::current().access_changes;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI release(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
  static CUresult CUDAAPI import_external(CUexternalMemory* memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
    FakeDriver::current().make(memory);
    ++FakeDriver::current().externals;
    FakeDriver::current().oracle.note_imported(*memory, *description);
    close(description->handle.fd);  // it is the driver's now
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI map_external(CUdeviceptr* address, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* buffer) {
    *address = FakeDriver::current().oracle.place_external(memory, buffer->size);
    if (*address == 0) return CUDA_ERROR_INVALID_HANDLE;
    ++FakeDriver::current().buffers;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI free_external(CUdeviceptr address) {
    --FakeDriver::current().buffers;
    FakeDriver::current().look_for_users("cuMemFree", address, FakeDriver::current().oracle.buffer_bytes(address));
    FakeDriver::current().oracle.note_freed(address);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI destroy_external(CUexternalMemory memory) {
    --FakeDriver::current().externals;
    FakeDriver::current().oracle.note_destroyed(memory);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = 3u << 20;
    *total_bytes = 4u << 20;
    return CUDA_SUCCESS;
  }
};

void FakeMemory::fill(DriverTable& table) {
  table.cuMemHostRegister_v2 = FakeMemoryEntry::host_register;
  table.cuMemHostUnregister = FakeMemoryEntry::host_unregister;
  table.cuMemHostGetDevicePointer_v2 = FakeMemoryEntry::host_pointer;
  table.cuMemGetAllocationGranularity = FakeMemoryEntry::granularity;
  table.cuMemAddressReserve = FakeMemoryEntry::reserve;
  table.cuMemAddressFree = FakeMemoryEntry::address_free;
  table.cuMemCreate = FakeMemoryEntry::create;
  table.cuMemGetAllocationPropertiesFromHandle = FakeMemoryEntry::memory_properties;
  table.cuMemExportToShareableHandle = FakeMemoryEntry::export_handle;
  table.cuMemMap = FakeMemoryEntry::map;
  table.cuMemUnmap = FakeMemoryEntry::unmap;
  table.cuMemSetAccess = FakeMemoryEntry::set_access;
  table.cuMemRelease = FakeMemoryEntry::release;
  table.cuImportExternalMemory = FakeMemoryEntry::import_external;
  table.cuExternalMemoryGetMappedBuffer = FakeMemoryEntry::map_external;
  table.cuMemFree_v2 = FakeMemoryEntry::free_external;
  table.cuDestroyExternalMemory = FakeMemoryEntry::destroy_external;
  table.cuMemGetInfo_v2 = FakeMemoryEntry::memory_info;
}

}  // namespace mpsshim::test
