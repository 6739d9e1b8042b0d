// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/ipc_memory.hpp"

#include <algorithm>
#include <cstring>

#include "gen/api_declarations.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/device_ranges.hpp"
#include "interposer/forward/memory/shared_memory.hpp"
#include "interposer/forward/memory/virtual_memory.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint64_t kMemoryMagic = 0x6d50'5368'4d65'6d48;

}  // namespace

IpcMemory& IpcMemory::instance() {
  return PerSession<IpcMemory>::get([] { return new IpcMemory(); });
}

CUresult IpcMemory::place_of(const AddressRange& allocation, Place& place) {
  const auto found = DeviceMemory::instance().find(allocation.address);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  place.offset = allocation.address - found->chunk;
  place.size_bytes = allocation.size_bytes;
  return share_memory(found->chunk, place.chunk);
}

CUresult IpcMemory::name(std::uint64_t address, CUipcMemHandle& handle) {
  const std::optional<DeviceRange> range = find_device_range(address);
  if (!range || range->pool != nullptr || range->is_mapped || range->is_imported || range->is_managed) return CUDA_ERROR_INVALID_VALUE;
  Content content;
  content.magic = kMemoryMagic;
  if (const CUresult error = place_of(range->range, content.place); error != CUDA_SUCCESS) return error;
  std::memcpy(&handle, &content, sizeof content);
  return CUDA_SUCCESS;
}

CUresult IpcMemory::map(const Place& place, AddressRange& mapped) {
  VirtualMemory& memory = VirtualMemory::instance();
  CUmemGenericAllocationHandle chunk = 0;
  bool is_own = false;
  if (const CUresult error = memory.open(place.chunk, chunk, is_own); error != CUDA_SUCCESS) return error;
  const std::uint64_t bytes = memory.properties(chunk).value_or(VirtualMemory::Properties{}).size_bytes;
  CUresult error = is_own ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  if (error == CUDA_SUCCESS && (place.offset > bytes || place.size_bytes > bytes - place.offset)) error = CUDA_ERROR_INVALID_VALUE;
  std::uint64_t address = 0;
  if (error == CUDA_SUCCESS) error = memory.reserve(bytes, DeviceArena::kGranularityBytes, 0, address);
  if (error == CUDA_SUCCESS) {
    error = memory.map(address, bytes, chunk);
    if (error == CUDA_SUCCESS) error = memory.set_access(address, bytes, true);
    if (error != CUDA_SUCCESS) {
      (void)memory.unmap(address, bytes);
      (void)memory.free_range(address, bytes);
    }
  }
  (void)memory.release(chunk);  // from here on the mapping keeps it
  mapped = {address, bytes};
  return error;
}

CUresult IpcMemory::open(const CUipcMemHandle& handle, CUcontext context, std::uint64_t& address) {
  Content content;
  std::memcpy(static_cast<void*>(&content), &handle, sizeof content);
  return content.magic == kMemoryMagic ? open(content.place, nullptr, context, address) : CUDA_ERROR_INVALID_VALUE;
}

CUresult IpcMemory::open(const Place& place, CUmemoryPool pool, CUcontext context, std::uint64_t& address) {
  if (place.size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard ordering(order_mutex_);
  {
    const std::lock_guard lock(mutex_);
    for (auto& [begin, opened] : opened_) {
      if (!(opened.place == place) || opened.pool != pool) continue;
      ++opened.times;
      address = opened.allocation.address;
      return CUDA_SUCCESS;
    }
  }
  AddressRange mapped;
  if (const CUresult error = map(place, mapped); error != CUDA_SUCCESS) return error;
  address = mapped.address + place.offset;
  const std::lock_guard lock(mutex_);
  opened_.emplace(mapped.address, Opened{place, pool, mapped, {address, place.size_bytes}, {context, next_buffer_id()}, 1});
  has_been_used_.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult IpcMemory::close(std::uint64_t address) {
  const std::lock_guard ordering(order_mutex_);
  AddressRange mapped;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(opened_, [&](const auto& entry) { return entry.second.allocation.address == address; });
    if (found == opened_.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.times != 0) return CUDA_SUCCESS;
    mapped = found->second.mapped;
    opened_.erase(found);
  }
  if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
  if (const CUresult error = VirtualMemory::instance().unmap(mapped.address, mapped.size_bytes); error != CUDA_SUCCESS) return error;
  return VirtualMemory::instance().free_range(mapped.address, mapped.size_bytes);
}

bool IpcMemory::look(std::uint64_t address, std::optional<Found>& found) const {
  if (!has_been_used_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  auto opened = opened_.upper_bound(address);
  if (opened == opened_.begin()) return false;
  --opened;
  if (!opened->second.mapped.holds(address, 1)) return false;
  if (opened->second.allocation.holds(address, 1)) {
    found = Found{opened->second.allocation, opened->second.owner, opened->second.pool};
  }
  return true;
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

CUresult cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  if (pHandle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = begin();
  return error == CUDA_SUCCESS ? IpcMemory::instance().name(dptr, *pHandle) : error;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  if (pdptr == nullptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  std::uint64_t address = 0;
  const CUresult error = IpcMemory::instance().open(handle, owning_context(), address);
  if (error == CUDA_SUCCESS) *pdptr = address;
  return error;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  const CUresult error = begin();
  return error == CUDA_SUCCESS ? IpcMemory::instance().close(dptr) : error;
}

}  // namespace mpsshim::interposer::api
