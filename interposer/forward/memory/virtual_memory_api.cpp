// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual, "Virtual Memory Management": memory of the session's device, read and written by it, by others that reach it, or by nobody.
// No context needs to be current, and none takes any of it along when it ends.
#include <algorithm>
#include <cstring>

#include "gen/api_declarations.hpp"
#include "interposer/forward/memory/device_arena.hpp"
#include "interposer/forward/memory/shared_memory.hpp"
#include "interposer/forward/memory/virtual_memory.hpp"
#include "interposer/forward/peer_access.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

constexpr std::uint64_t kGranularity = DeviceArena::kGranularityBytes;

VirtualMemory& memory() { return VirtualMemory::instance(); }

bool is_granular(std::uint64_t value) { return value % kGranularity == 0; }

// Some device of this process.
CUresult check_device(const CUmemLocation& location) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  return device_facts(location.id) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// The session's, or one that reaches its memory.
CUresult check_location(const CUmemLocation& location) {
  if (const CUresult error = check_device(location); error != CUDA_SUCCESS) return error;
  return location.id == session_device() || can_access(location.id, session_device()) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult check_access(const CUmemAccessDesc& access) {
  if (const CUresult error = check_location(access.location); error != CUDA_SUCCESS) return error;
  switch (access.flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_NONE:
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE: return CUDA_SUCCESS;
    // A copy into such memory would have to be refused here; kernels are stopped by the device, which ends the context of everybody.
    case CU_MEM_ACCESS_FLAGS_PROT_READ: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult check_properties(const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  const auto handles = properties->requestedHandleTypes;
  if (handles != CU_MEM_HANDLE_TYPE_NONE && handles != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  return check_device(properties->location);
}

// Memory of another session's device at addresses of this one's: it reaches the memory as it does another process's.
CUresult map_of_other(std::uint32_t owner, CUdeviceptr ptr, size_t size, CUmemGenericAllocationHandle handle) {
  proto::MemoryName name;
  {
    const ActingSession acting(owner);
    if (!memory().properties(handle)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = share_memory(handle, name); error != CUDA_SUCCESS) return error;
  }
  CUmemGenericAllocationHandle here = 0;
  bool is_own = false;
  if (const CUresult error = memory().open(name, here, is_own); error != CUDA_SUCCESS) return error;
  const CUresult error = memory().map(ptr, size, here);
  const CUresult released = memory().release(here);  // the mapping holds it
  return error != CUDA_SUCCESS ? error : released;
}

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop, CUmemAllocationGranularity_flags option) {
  if (granularity == nullptr || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult error = check_properties(prop);
  if (error == CUDA_SUCCESS) *granularity = kGranularity;
  return error;
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
  if (ptr == nullptr || flags != 0 || size == 0 || !is_granular(size) || (alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  std::uint64_t address = 0;
  const CUresult error = memory().reserve(size, std::max<std::uint64_t>(alignment, kGranularity), addr, address);
  if (error == CUDA_SUCCESS) *ptr = address;
  return error;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  const CUresult error = begin_without_context();
  return error == CUDA_SUCCESS ? memory().free_range(ptr, size) : error;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop, unsigned long long flags) {
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = check_properties(prop); error != CUDA_SUCCESS) return error;
  if (size == 0 || !is_granular(size)) return CUDA_ERROR_INVALID_VALUE;
  if (prop->allocFlags.gpuDirectRDMACapable != 0) return CUDA_ERROR_NOT_SUPPORTED;  // as attribute 110 says
  if (prop->allocFlags.compressionType > CU_MEM_ALLOCATION_COMP_GENERIC) return CUDA_ERROR_INVALID_VALUE;
  // Tiles of sparse arrays are memory of the driver's own kind, which it refuses here with this error. What CUDA has added since is not offered.
  if ((prop->allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (prop->allocFlags.usage != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const ActingSession acting(session_of(prop->location.id));
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  return memory().create(size, {prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE, prop->allocFlags.compressionType}, *handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const CUresult error = begin_without_context();
  return error == CUDA_SUCCESS ? memory().release(handle) : error;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  if (!is_granular(ptr) || !is_granular(size) || size == 0) return CUDA_ERROR_INVALID_VALUE;
  const proto::MemoryId id{handle};
  const bool is_others = id.has_kind() && id.realm() != ActingSession::index() && id.realm() < session_count();
  if (is_others && offset == 0) return map_of_other(id.realm(), ptr, size, handle);
  if (offset != 0) return is_others || memory().properties(handle) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  return memory().map(ptr, size, handle);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  const CUresult error = begin_without_context();
  return error == CUDA_SUCCESS ? memory().unmap(ptr, size) : error;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  if (desc == nullptr || count == 0 || count > static_cast<std::size_t>(device_count())) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  for (std::size_t i = 0; i < count; ++i) {
    if (const CUresult error = check_access(desc[i]); error != CUDA_SUCCESS) return error;
    const bool is_again = std::any_of(desc, desc + i, [&](const CUmemAccessDesc& other) { return other.location.id == desc[i].location.id; });
    if (is_again) return CUDA_ERROR_INVALID_VALUE;  // it could only contradict
  }
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_accessible = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, is_own = desc[i].location.id == session_device();
    const CUresult error =
        is_own ? memory().set_access(ptr, size, is_accessible) : memory().set_peer_access(ptr, size, session_of(desc[i].location.id), is_accessible);
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  if (const CUresult error = check_location(*location); error != CUDA_SUCCESS) return error;
  const auto found = memory().find(ptr);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  const bool is_own = location->id == session_device();
  const bool is_accessible = is_own ? found->is_accessible : has_session(location->id) && (found->reached_by >> session_of(location->id) & 1) != 0;
  *flags = is_accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType handleType,
                                      unsigned long long flags) {
  if (shareableHandle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const auto found = memory().properties(handle);
  if (!found || !found->is_exportable) return CUDA_ERROR_INVALID_VALUE;
  proto::MemoryName name;
  if (const CUresult error = share_memory(handle, name); error != CUDA_SUCCESS) return error;
  proto::FileDescriptor file = write_name(name);
  if (!file.valid()) return CUDA_ERROR_OPERATING_SYSTEM;
  const int fd = file.release();
  std::memcpy(shareableHandle, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle, CUmemAllocationHandleType shHandleType) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  proto::MemoryName name;
  if (!read_name(static_cast<int>(reinterpret_cast<std::intptr_t>(osHandle)), name)) return CUDA_ERROR_INVALID_VALUE;
  bool is_own = false;
  return memory().open(name, *handle, is_own);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  const auto found = memory().retain(reinterpret_cast<std::uintptr_t>(addr));
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  *handle = *found;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  const auto found = memory().properties(handle);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  std::uint32_t compression = CU_MEM_ALLOCATION_COMP_NONE;
  if (found->may_be_compressed) {
    if (const CUresult error = VirtualMemory::compression(handle, compression); error != CUDA_SUCCESS) return error;
  }
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->requestedHandleTypes = found->is_exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_having(found->device)}};
  prop->allocFlags.compressionType = static_cast<unsigned char>(compression);
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
