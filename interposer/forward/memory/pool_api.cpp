// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual, "Stream Ordered Memory Allocator", and the device's pools from "Device Management".
#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/graphs/graph_memory.hpp"
#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/device_ranges.hpp"
#include "interposer/forward/memory/ipc_memory.hpp"
#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/forward/memory/shared_pools.hpp"
#include "interposer/forward/peer_access.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

MemoryPools& pools() { return MemoryPools::instance(); }

// Pools are a device's, and so its session's.
CUresult check_pool_location(const CUmemLocation* location) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  return device_facts(location->id) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// Memory of a device for kernels and copies; the newer kinds (managed, on the host) have no pools here.
CUresult check_place(const CUmemLocation* location, CUmemAllocationType type) {
  return type == CU_MEM_ALLOCATION_TYPE_PINNED ? check_pool_location(location) : CUDA_ERROR_NOT_SUPPORTED;
}

// Under capture it becomes a node, with memory of the graph's.
CUresult allocate_in_graph(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, Stream& stream) {
  if (!pools().is_pool(pool)) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params.poolProps.location.id = session_device();
  params.bytesize = bytes;
  std::uint64_t found = 0;
  const CUresult error = Captures::instance().allocate(stream, params, found);
  if (error == CUDA_SUCCESS) *address = found;
  return error;
}

CUresult allocate(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream handle) {
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (SharedPools::instance().is_imported(pool)) return CUDA_ERROR_INVALID_VALUE;
  if (stream->is_captured.load(std::memory_order_relaxed)) return allocate_in_graph(address, bytes, pool, *stream);
  if (bytes == 0) {
    *address = 0;
    return CUDA_SUCCESS;
  }
  std::uint64_t found = 0;
  const CUcontext owner = owning_context(stream->context != nullptr ? stream->context : current_context());
  const CUresult error = pools().allocate(pool, bytes, *stream, owner, found);
  if (error == CUDA_SUCCESS) *address = found;
  return error;
}

PeerAccess::Reason pool_access(CUmemoryPool pool, CUdevice device) {
  return {session_of(device), ActingSession::index(), 0, reinterpret_cast<std::uintptr_t>(pool)};
}

// cuMemAlloc's memory, which may be freed in stream order as well. Only pools can remember what a free stands behind, so this one waits.
CUresult free_ordinary(const DeviceRange& allocation, CUdeviceptr address, CUstream stream) {
  if (allocation.range.address != address || allocation.is_mapped || allocation.is_imported) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = api::cuStreamSynchronize(stream); error != CUDA_SUCCESS) return error;
  return DeviceMemory::instance().give_back(address);
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) { return allocate(dptr, bytesize, pools().current(), hStream); }
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  return allocate(dptr, bytesize, pool, hStream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  if (const CUresult error = begin_on(hStream); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(hStream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->is_captured.load(std::memory_order_relaxed)) return Captures::instance().free(*stream, dptr);
  if (dptr == 0) return CUDA_SUCCESS;
  if (GraphMemory::instance().holds(dptr)) return GraphMemory::instance().free(dptr, stream);
  const auto allocation = find_device_range(dptr);
  if (allocation && allocation->is_imported && allocation->pool != nullptr) return IpcMemory::instance().close(dptr);
  if (allocation && allocation->is_managed) return CUDA_ERROR_INVALID_VALUE;
  if (allocation && allocation->pool == nullptr) return free_ordinary(*allocation, dptr, hStream);
  return pools().free(dptr, *stream);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
  if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of(dev));
  *pool_out = pools().default_pool();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of(dev));
  *pool = pools().current();
  return CUDA_SUCCESS;
}
CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of(dev));
  return SharedPools::instance().is_imported(pool) ? CUDA_ERROR_INVALID_VALUE : pools().set_current(pool);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location, CUmemAllocationType type) {
  const CUresult error = check_place(location, type);
  return error == CUDA_SUCCESS ? api::cuDeviceGetDefaultMemPool(pool_out, location->id) : error;
}
CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  const CUresult error = check_place(location, type);
  return error == CUDA_SUCCESS ? api::cuDeviceGetMemPool(pool, location->id) : error;
}
CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  const CUresult error = check_place(location, type);
  return error == CUDA_SUCCESS ? api::cuDeviceSetMemPool(location->id, pool) : error;
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  if (pool == nullptr || poolProps == nullptr || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = check_pool_location(&poolProps->location); error != CUDA_SUCCESS) return error;
  const bool is_shared = poolProps->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (!is_shared && poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  const ActingSession acting(session_of(poolProps->location.id));
  const CUresult error = pools().create(poolProps->maxSize, *pool);
  if (error == CUDA_SUCCESS && is_shared) SharedPools::instance().add(*pool);
  return error;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  const CUresult error = begin_without_context();
  if (error != CUDA_SUCCESS) return error;
  const CUresult destroyed = pools().destroy(pool);
  if (destroyed != CUDA_SUCCESS) return destroyed;
  SharedPools::instance().forget(pool);
  PeerAccess::instance().forget(reinterpret_cast<std::uintptr_t>(pool));
  return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  const CUresult error = begin_without_context();
  return error == CUDA_SUCCESS ? pools().trim(pool, minBytesToKeep) : error;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) { return pools().get_attribute(pool, attr, value); }
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) { return pools().set_attribute(pool, attr, value); }

// The pool's own device reaches the memory, always.
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
  if (!pools().is_pool(pool) || (map == nullptr && count != 0)) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    if (const CUresult error = check_pool_location(&map[i].location); error != CUDA_SUCCESS) return error;
    const bool is_own = map[i].location.id == session_device();
    const bool is_imported = SharedPools::instance().is_imported(pool);
    if (!is_own && (is_imported || !can_access(map[i].location.id, session_device()))) return CUDA_ERROR_NOT_SUPPORTED;
    if (!is_own && map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
    const bool is_revoked = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (is_own && is_revoked) return CUDA_ERROR_INVALID_DEVICE;
    if (!is_revoked && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (map[i].location.id == session_device()) continue;
    const PeerAccess::Reason reason = pool_access(pool, map[i].location.id);
    const bool is_allowed = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (PeerAccess::instance().is_enabled(reason) == is_allowed) continue;
    const CUresult error = is_allowed ? PeerAccess::instance().enable(reason) : PeerAccess::instance().disable(reason);
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool memPool, CUmemLocation* location) {
  if (flags == nullptr || !pools().is_pool(memPool)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = check_pool_location(location);
  if (error == CUDA_SUCCESS) {
    const bool is_own = location->id == session_device();
    const bool is_reached = is_own || (has_session(location->id) && PeerAccess::instance().is_enabled(pool_access(memPool, location->id)));
    *flags = is_reached ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  return error;
}

CUresult cuMemPoolExportToShareableHandle(void* handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType, unsigned long long flags) {
  if (handle_out == nullptr || flags != 0 || !pools().is_pool(pool)) return CUDA_ERROR_INVALID_VALUE;
  if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  proto::FileDescriptor file;
  const CUresult error = SharedPools::instance().export_pool(pool, file);
  if (error == CUDA_SUCCESS) *static_cast<int*>(handle_out) = file.release();
  return error;
}
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle, CUmemAllocationHandleType handleType, unsigned long long flags) {
  if (pool_out == nullptr || flags != 0 || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  return SharedPools::instance().import_pool(static_cast<int>(reinterpret_cast<std::intptr_t>(handle)), *pool_out);
}
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* shareData_out, CUdeviceptr ptr) {
  if (shareData_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = begin_without_context();
  return error == CUDA_SUCCESS ? SharedPools::instance().export_pointer(ptr, *shareData_out) : error;
}
CUresult cuMemPoolImportPointer(CUdeviceptr* ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData* shareData) {
  if (ptr_out == nullptr || shareData == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_without_context(); error != CUDA_SUCCESS) return error;
  std::uint64_t address = 0;
  const CUresult error = SharedPools::instance().import_pointer(pool, *shareData, owning_context(), address);
  if (error == CUDA_SUCCESS) *ptr_out = address;
  return error;
}

}  // namespace mpsshim::interposer::api
