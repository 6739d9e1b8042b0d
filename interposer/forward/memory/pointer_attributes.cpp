// SPDX-License-Identifier: Apache-2.0
// What a pointer is (CUDA Driver API manual, "Unified Addressing"), answered from this process's own tables.
#include <array>
#include <cstring>
#include <optional>

#include "gen/api_declarations.hpp"
#include "interposer/forward/memory/device_ranges.hpp"
#include "interposer/forward/memory/globals.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/registered.hpp"
#include "interposer/forward/memory/sync_memops.hpp"
#include "interposer/forward/memory/virtual_memory.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

struct Pointed {
  AddressRange range;
  CUmemorytype type = CU_MEMORYTYPE_DEVICE;
  CUcontext context = nullptr;
  std::uint64_t buffer_id = 0;
  CUmemoryPool pool = nullptr;
  bool is_managed = false;
  bool has_ipc_handle = false;
  bool is_exportable = false;
  // Registered memory has two addresses; 0: no device address.
  bool is_registered = false;
  std::uint64_t device_address = 0;
  std::uint64_t host_address = 0;
};

Pointed registered_at(const RegisteredMemory::Found& found, std::uint64_t offset) {
  Pointed pointed{found.range, CU_MEMORYTYPE_HOST, found.context, found.buffer_id};
  pointed.is_registered = true;
  pointed.device_address = found.alias != 0 ? found.alias + offset : 0;
  pointed.host_address = found.range.address + offset;
  return pointed;
}

std::optional<Pointed> find_pointed(std::uint64_t address) {
  if (!session().is_attached()) return std::nullopt;
  if (const auto variable = Globals::instance().find(address)) {
    return Pointed{*variable, CU_MEMORYTYPE_DEVICE, owning_context(), variable->address};
  }
  if (const auto allocation = find_device_range(address)) {
    Pointed pointed{allocation->range, CU_MEMORYTYPE_DEVICE, allocation->owner.context, allocation->owner.buffer_id, allocation->pool};
    pointed.has_ipc_handle = allocation->pool == nullptr && !allocation->is_mapped && !allocation->is_imported && !allocation->is_managed;
    pointed.is_managed = allocation->is_managed;
    if (allocation->is_variable) pointed.context = owning_context();
    pointed.is_exportable = allocation->is_exportable;
    return pointed;
  }
  auto registered = RegisteredMemory::instance().find(address);
  const std::uint64_t offset = registered ? address - registered->range.address : 0;
  if (registered) return registered_at(*registered, offset);
  registered = RegisteredMemory::instance().find_alias(address);
  if (registered) return registered_at(*registered, address - registered->alias);
  if (const auto pinned = PinnedMemory::instance().find(address)) {
    // Managed memory counts as the device's, though the host has it too.
    const CUmemorytype type = pinned->is_managed ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    const CUcontext context = pinned->is_variable ? owning_context() : pinned->context;
    return Pointed{pinned->range, type, context, pinned->buffer_id, nullptr, pinned->is_managed};
  }
  return std::nullopt;
}

template <typename T>
CUresult store(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Attributes of memory that is known. CUDA_ERROR_NOT_SUPPORTED: not built; CUDA_ERROR_INVALID_VALUE: it has no such attribute.
CUresult attribute_of(const Pointed& pointed, CUpointer_attribute attribute, std::uint64_t address, void* data) {
  const bool is_host = pointed.type == CU_MEMORYTYPE_HOST || pointed.is_managed;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return store(data, pointed.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return store(data, static_cast<unsigned int>(pointed.type));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (pointed.is_registered && pointed.device_address == 0) return CUDA_ERROR_INVALID_VALUE;
      return store(data, static_cast<CUdeviceptr>(pointed.is_registered ? pointed.device_address : address));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (pointed.is_registered) return store(data, pointed.host_address);
      return is_host ? store(data, address) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return store(data, SyncMemops::instance().holds(pointed.buffer_id));
    // Counted; variables use their address, which no count reaches.
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return store(data, static_cast<unsigned long long>(pointed.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return store(data, pointed.is_managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
      const auto mapped = VirtualMemory::instance().find(address);  // perhaps another device's, imported
      return store(data, static_cast<int>(device_having(mapped ? mapped->device : 0)));
    }
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return store(data, pointed.has_ipc_handle);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return store(data, static_cast<CUdeviceptr>(pointed.range.address));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return store(data, static_cast<std::size_t>(pointed.range.size_bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED: return store(data, !pointed.is_registered || pointed.device_address != 0);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return store(data, std::uint64_t{pointed.is_exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE});
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return store(data, false);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return store(data, static_cast<unsigned int>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return store(data, pointed.pool);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// What cuPointerGetAttributes says of memory that CUDA does not know.
void store_unknown(CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: (void)store(data, static_cast<int>(CU_DEVICE_INVALID)); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: (void)store(data, 0u); break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: (void)store(data, false); break;
    default: (void)store(data, std::uint64_t{0}); break;
  }
}

}  // namespace

// Addresses mean the same in every context: neither needs a current one, and threads without one do ask.
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (are_calls_forbidden()) return CUDA_ERROR_NOT_PERMITTED;
  const auto pointed = find_pointed(ptr);
  return pointed ? attribute_of(*pointed, attribute, ptr, data) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes, void** data, CUdeviceptr ptr) {
  if (numAttributes == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (are_calls_forbidden()) return CUDA_ERROR_NOT_PERMITTED;
  const auto pointed = find_pointed(ptr);
  for (unsigned int i = 0; i < numAttributes; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult error = pointed ? attribute_of(*pointed, attributes[i], ptr, data[i]) : CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_ERROR_NOT_SUPPORTED) return error;
    if (error != CUDA_SUCCESS) store_unknown(attributes[i], data[i]);
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;  // the others are what they are
  if (const CUresult error = begin_with_handle(); error != CUDA_SUCCESS) return error;
  const auto pointed = find_pointed(ptr);
  if (!pointed || pointed->type == CU_MEMORYTYPE_HOST || pointed->is_managed) return CUDA_ERROR_INVALID_VALUE;
  unsigned int synchronous = 0;
  std::memcpy(&synchronous, value, sizeof synchronous);
  SyncMemops::instance().set(pointed->buffer_id, synchronous != 0);
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
