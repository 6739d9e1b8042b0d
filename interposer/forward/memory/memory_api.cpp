// SPDX-License-Identifier: Apache-2.0
// Device and pinned allocations (CUDA Driver API manual, "Memory Management").
#include <algorithm>

#include "gen/api_declarations.hpp"
#include "interposer/forward/across_sessions.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/graphs/graph_memory.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/device_ranges.hpp"
#include "interposer/forward/memory/external_memory.hpp"
#include "interposer/forward/memory/globals.hpp"
#include "interposer/forward/memory/ipc_memory.hpp"
#include "interposer/forward/memory/memory_info.hpp"
#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/registered.hpp"
#include "interposer/forward/peer_access.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/call_session.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// Calls that may wait for the device are not permitted while something captures.
CUresult begin_unsafe(CUresult begun) { return begun == CUDA_SUCCESS ? Captures::instance().check_unsafe_call() : begun; }

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  if (dptr == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_unsafe(begin()); error != CUDA_SUCCESS) return error;
  std::uint64_t address = 0;
  const CUresult error = DeviceMemory::instance().allocate(bytesize, owning_context(), address);
  if (error == CUDA_SUCCESS) *dptr = address;
  return error;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  if (const CUresult error = begin_unsafe(begin_with_handle()); error != CUDA_SUCCESS) return error;
  if (dptr == 0) return CUDA_SUCCESS;
  if (has_several_sessions()) {
    finish_copies_across();
    PeerAccess::instance().finish_work();
  }
  if (std::optional<ManagedMemory::Found> managed; ManagedMemory::instance().look(dptr, managed)) {
    return managed && !managed->is_variable ? ManagedMemory::instance().free(dptr) : CUDA_ERROR_INVALID_VALUE;
  }
  if (const auto host = PinnedMemory::instance().find(dptr); host && host->is_managed) {
    if (host->is_variable) return CUDA_ERROR_INVALID_VALUE;
    return PinnedMemory::instance().free(reinterpret_cast<void*>(dptr));  // NOLINT(performance-no-int-to-ptr)
  }
  if (GraphMemory::instance().holds(dptr)) {
    if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
    const CUresult error = GraphMemory::instance().free(dptr, nullptr);
    GraphMemory::instance().reap();
    return error;
  }
  const auto allocation = find_device_range(dptr);
  if (allocation && allocation->is_imported && allocation->pool != nullptr) return IpcMemory::instance().close(dptr);
  if (allocation && allocation->is_external) return ExternalMemories::instance().free(dptr);
  if (!allocation || allocation->range.address != dptr || allocation->is_mapped || allocation->is_imported) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->pool == nullptr) return DeviceMemory::instance().free(dptr);
  if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
  return MemoryPools::instance().give_back(dptr);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height, unsigned int ElementSizeBytes) {
  constexpr std::size_t kPitch = DeviceHeap::kAlignment;  // what every device so far answers; rows stay aligned for all element sizes
  if (dptr == nullptr || pPitch == nullptr || WidthInBytes == 0 || Height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16) return CUDA_ERROR_INVALID_VALUE;
  std::size_t pitch = 0, bytes = 0;
  if (__builtin_add_overflow(WidthInBytes, kPitch - 1, &pitch)) return CUDA_ERROR_INVALID_VALUE;
  pitch = pitch / kPitch * kPitch;
  if (__builtin_mul_overflow(pitch, Height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult error = api::cuMemAlloc_v2(dptr, bytes);
  if (error == CUDA_SUCCESS) *pPitch = pitch;
  return error;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const MemoryInfo info = read_memory_info();
  if (info.error != CUDA_SUCCESS) return info.error;
  if (free != nullptr) *free = info.free_bytes;
  if (total != nullptr) *total = info.total_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  std::optional<AddressRange> range;
  if (const auto allocation = find_device_range(dptr)) range = allocation->range;
  if (!range) range = Globals::instance().find(dptr);
  if (!range) {
    if (const auto pinned = PinnedMemory::instance().find(dptr)) range = pinned->range;
  }
  if (!range) return CUDA_ERROR_NOT_FOUND;
  if (pbase != nullptr) *pbase = range->address;
  if (psize != nullptr) *psize = range->size_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  constexpr unsigned int kKnown = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (pp == nullptr || (Flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_unsafe(begin()); error != CUDA_SUCCESS) return error;
  if (bytesize == 0) {
    *pp = nullptr;
    return CUDA_SUCCESS;
  }
  return PinnedMemory::instance().allocate(bytesize, Flags, owning_context(), *pp);
}

CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) { return api::cuMemHostAlloc(pp, bytesize, 0); }

CUresult cuMemFreeHost(void* p) {
  if (const CUresult error = begin_unsafe(begin_with_handle()); error != CUDA_SUCCESS) return error;
  if (p == nullptr) return CUDA_SUCCESS;
  const auto found = PinnedMemory::instance().find(reinterpret_cast<std::uintptr_t>(p));
  return found && !found->is_managed && !found->is_alias ? PinnedMemory::instance().free(p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  if (pdptr == nullptr || Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (const auto registered = RegisteredMemory::instance().find(address)) {
    if (registered->alias == 0) return CUDA_ERROR_NOT_SUPPORTED;
    *pdptr = registered->alias + (address - registered->range.address);
    return CUDA_SUCCESS;
  }
  std::optional<ManagedMemory::Found> managed;
  const bool is_managed = ManagedMemory::instance().look(address, managed) && managed;
  if (!is_managed && !PinnedMemory::instance().find(address)) return CUDA_ERROR_INVALID_VALUE;
  *pdptr = address;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  if (pFlags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  if (const auto registered = RegisteredMemory::instance().find(address)) {
    *pFlags = registered->flags | CU_MEMHOSTALLOC_DEVICEMAP;  // the two kinds of memory have the same bits
    return CUDA_SUCCESS;
  }
  const auto found = PinnedMemory::instance().find(address);
  if (!found || found->is_managed || found->is_alias) return CUDA_ERROR_INVALID_VALUE;
  // With unified addressing every pinned allocation is mapped and portable, and the driver says so of the former.
  *pFlags = found->flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
  constexpr unsigned int kKnown =
      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if (p == nullptr || bytesize == 0 || (Flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  // Memory of a device's, and what the GPU must not write (attribute 113): neither could be kept up.
  if ((Flags & (CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const AddressRange range{reinterpret_cast<std::uintptr_t>(p), bytesize};
  if (range.size_bytes > UINT64_MAX - range.address) return CUDA_ERROR_INVALID_VALUE;
  return RegisteredMemory::instance().add(range, Flags, owning_context());
}

CUresult cuMemHostUnregister(void* p) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = begin_with_handle();
  return error == CUDA_SUCCESS ? RegisteredMemory::instance().remove(reinterpret_cast<std::uintptr_t>(p)) : error;
}

}  // namespace mpsshim::interposer::api

namespace mpsshim::interposer::forward {

MemoryInfo read_memory_info() {
  proto::MemoryInfoReply reply{};
  const CUresult error = session().channel().call({}, proto::MemoryInfoRecord{}, {}, reply);
  if (error != CUDA_SUCCESS) return {error, 0, 0};
  return {error, std::min<std::uint64_t>(reply.free_bytes + DeviceMemory::instance().kept_bytes(), reply.total_bytes), reply.total_bytes};
}

}  // namespace mpsshim::interposer::forward
