// SPDX-License-Identifier: Apache-2.0
// Managed memory (CUDA Driver API manual, "Memory Management" and "Unified Addressing"): one address for both sides. It migrates (ManagedMemory), or
// it is host memory that kernels reach over the bus, which prefetching does not move (PinnedMemory). What a program advises is kept and answered.
#include <algorithm>
#include <cstring>
#include <optional>

#include "gen/api_declarations.hpp"
#include "interposer/forward/across_sessions.hpp"
#include "interposer/forward/memory/managed_advice.hpp"
#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/forward/memory/managed_residence.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// Managed memory is every device's: a call in a stream of any means what some session has made.
std::uint32_t home_of(CUdeviceptr address) {
  if (!has_several_sessions()) return 0;
  const auto made = session_that_made(address);
  return made ? *made : session_holding(address).value_or(ActingSession::index());
}

// The managed allocation or variable that holds `address`, wherever it lives.
std::optional<AddressRange> managed_range(CUdeviceptr address) {
  const ActingSession acting(home_of(address));
  std::optional<ManagedMemory::Found> migrating;
  if (ManagedMemory::instance().look(address, migrating)) return migrating ? std::optional(migrating->range) : std::nullopt;
  const auto found = PinnedMemory::instance().find(address);
  return found && found->is_managed ? std::optional(found->range) : std::nullopt;
}

bool migrates(CUdeviceptr address) {
  const ActingSession acting(home_of(address));
  std::optional<ManagedMemory::Found> found;
  return ManagedMemory::instance().look(address, found);
}

// The pages of a range within one managed allocation.
std::optional<AddressRange> managed_pages(CUdeviceptr address, std::size_t bytes) {
  const auto found = managed_range(address);
  if (!found || bytes == 0 || !found->holds(address, bytes)) return std::nullopt;
  const std::uint64_t first = address / proto::kPageBytes * proto::kPageBytes;
  const std::uint64_t end = (address + bytes + proto::kPageBytes - 1) / proto::kPageBytes * proto::kPageBytes;
  return AddressRange{first, end - first};
}

CUmemLocation location_of(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == CU_DEVICE_CPU ? 0 : device;
  return location;
}

CUresult check_managed_location(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return device_facts(location.id) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// As the older attributes number locations.
int device_of(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_INVALID) return CU_DEVICE_INVALID;
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
}

CUresult move_to(AddressRange pages, const CUmemLocation& location, Stream& stream) {
  const std::uint32_t own = ActingSession::index();
  const ActingSession acting(home_of(pages.address));
  const bool is_to_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  ManagedAdvice::instance().change(pages, [&](Advice& advice) {
    advice.last_prefetch = location;
    advice.is_sent_to_device = is_to_device;
  });
  if (!migrates(pages.address) || stream.is_captured.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  ManagedResidence().follow_advice(pages.address);
  // What migrates lives on one device, whichever is named. In another device's stream it comes to the host with the touch.
  if (is_to_device) return ManagedMemory::instance().prefetch_to_device(pages);
  return ActingSession::index() == own ? ManagedMemory::instance().prefetch_to_host(pages, stream) : CUDA_SUCCESS;
}

CUresult prefetch(CUdeviceptr address, std::size_t bytes, const CUmemLocation& location, CUstream handle) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  if (const CUresult error = check_managed_location(location); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto pages = managed_pages(address, bytes);
  if (!pages) return CUDA_ERROR_INVALID_VALUE;
  return move_to(*pages, location, *stream);
}

struct Ranges {
  const CUdeviceptr* addresses;
  const std::size_t* sizes;
  std::size_t count;
};

// What a batch of discards or prefetches begins with: every range is managed memory, or nothing is done.
CUresult check_batch(const Ranges& ranges, unsigned long long flags, CUstream handle) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  if (ranges.addresses == nullptr || ranges.sizes == nullptr || ranges.count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_VALUE;  // as the manual has it
  if (Streams::instance().resolve(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (std::size_t i = 0; i < ranges.count; ++i) {
    if (!managed_pages(ranges.addresses[i], ranges.sizes[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// Locations name ranges by their first: ascending, from 0.
CUresult prefetch_batch(const Ranges& ranges, const CUmemLocation* locations, const std::size_t* first, std::size_t count, unsigned long long flags,
                        CUstream handle) {
  if (const CUresult error = check_batch(ranges, flags, handle); error != CUDA_SUCCESS) return error;
  if (locations == nullptr || first == nullptr || count == 0 || count > ranges.count || first[0] != 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    if (i != 0 && (first[i] <= first[i - 1] || first[i] >= ranges.count)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = check_managed_location(locations[i]); error != CUDA_SUCCESS) return error;
  }
  for (std::size_t i = 0, at = 0; i < ranges.count; ++i) {
    if (at + 1 < count && first[at + 1] <= i) ++at;
    const AddressRange pages = *managed_pages(ranges.addresses[i], ranges.sizes[i]);
    if (const CUresult error = move_to(pages, locations[at], *Streams::instance().resolve(handle)); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult advise(CUdeviceptr address, std::size_t bytes, CUmem_advise advice, const CUmemLocation& location) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const auto pages = managed_pages(address, bytes);
  if (!pages) return CUDA_ERROR_INVALID_VALUE;
  const bool has_location =
      advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (const CUresult error = has_location ? check_managed_location(location) : CUDA_SUCCESS; error != CUDA_SUCCESS) return error;
  const auto change = [&](auto&& how) {
    ManagedAdvice::instance().change(*pages, how);
    return CUDA_SUCCESS;
  };
  const auto prefer = [&](const CUmemLocation& where) {
    ManagedAdvice::instance().change(*pages, [&](Advice& kept) {
      kept.preferred = where;
      kept.is_sent_to_device = false;
    });
    const ActingSession acting(home_of(address));
    ManagedResidence().follow_advice(address);
    return CUDA_SUCCESS;
  };
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY: return change([](Advice& kept) { kept.is_read_mostly = true; });
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: return change([](Advice& kept) { kept.is_read_mostly = false; });
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: return prefer(location);
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: return prefer({});
    case CU_MEM_ADVISE_SET_ACCESSED_BY: return change([&](Advice& kept) { kept.accessed_by.insert(device_of(location)); });
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: return change([&](Advice& kept) { kept.accessed_by.erase(device_of(location)); });
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// The value that all pages share, else `mixed`.
template <typename Get>
int common(AddressRange pages, int mixed, Get&& get) {
  std::optional<int> value;
  bool is_mixed = false;
  ManagedAdvice::instance().visit(pages, [&](const Advice& advice) {
    is_mixed |= value && *value != get(advice);
    value = get(advice);
  });
  return is_mixed || !value ? mixed : *value;
}

CUresult store_accessed_by(AddressRange pages, int* devices, std::size_t count) {
  std::optional<std::set<int>> all;
  ManagedAdvice::instance().visit(pages, [&](const Advice& advice) {
    if (!all) all = advice.accessed_by;
    std::erase_if(*all, [&](int device) { return !advice.accessed_by.contains(device); });
  });
  std::fill_n(devices, count, CU_DEVICE_INVALID);
  std::size_t at = 0;
  for (const int device : all.value_or(std::set<int>{})) {
    if (at < count) devices[at++] = device;
  }
  return CUDA_SUCCESS;
}

CUresult store_attribute(void* data, std::size_t bytes, CUmem_range_attribute attribute, AddressRange pages) {
  if (data == nullptr || bytes == 0 || bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) return store_accessed_by(pages, static_cast<int*>(data), bytes / sizeof(int));
  if (bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
  const auto store = [&](int mixed, auto&& get) {
    const int value = common(pages, mixed, get);
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: return store(0, [](const Advice& advice) { return advice.is_read_mostly ? 1 : 0; });
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: return store(CU_DEVICE_INVALID, [](const Advice& advice) { return device_of(advice.preferred); });
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return store(CU_DEVICE_INVALID, [](const Advice& advice) { return device_of(advice.last_prefetch); });
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return store(CU_MEM_LOCATION_TYPE_INVALID, [](const Advice& advice) { return static_cast<int>(advice.preferred.type); });
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: return store(0, [](const Advice& advice) { return static_cast<int>(advice.preferred.id); });
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return store(CU_MEM_LOCATION_TYPE_INVALID, [](const Advice& advice) { return static_cast<int>(advice.last_prefetch.type); });
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return store(0, [](const Advice& advice) { return static_cast<int>(advice.last_prefetch.id); });
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  if (dptr == nullptr || bytesize == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  void* memory = nullptr;
  const CUresult error = ManagedMemory::instance().allocate(bytesize, owning_context(), memory);
  if (error == CUDA_SUCCESS) *dptr = reinterpret_cast<std::uintptr_t>(memory);
  return error;
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
  return prefetch(devPtr, count, location_of(dstDevice), hStream);
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, CUstream hStream) {
  return flags == 0 ? prefetch(devPtr, count, location, hStream) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count, CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                 size_t numPrefetchLocs, unsigned long long flags, CUstream hStream) {
  return prefetch_batch({dptrs, sizes, count}, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, hStream);
}
// What is discarded may be read as anything: it stays what it is.
CUresult cuMemDiscardBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count, unsigned long long flags, CUstream hStream) {
  return check_batch({dptrs, sizes, count}, flags, hStream);
}
CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count, CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                           size_t numPrefetchLocs, unsigned long long flags, CUstream hStream) {
  return prefetch_batch({dptrs, sizes, count}, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, hStream);
}
CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  return advise(devPtr, count, advice, location_of(device));
}
CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) {
  return advise(devPtr, count, advice, location);
}

CUresult cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute, CUdeviceptr devPtr, size_t count) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const auto pages = managed_pages(devPtr, count);
  return pages ? store_attribute(data, dataSize, attribute, *pages) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes, size_t numAttributes, CUdeviceptr devPtr,
                                 size_t count) {
  if (data == nullptr || dataSizes == nullptr || attributes == nullptr || numAttributes == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < numAttributes; ++i) {
    const CUresult error = api::cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

// Memory that stays on the host is always everybody's.
CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_on(hStream); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(hStream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (flags == CU_MEM_ATTACH_SINGLE && (hStream == nullptr || hStream == CU_STREAM_LEGACY)) return CUDA_ERROR_INVALID_VALUE;
  const auto found = managed_range(dptr);
  if (!found || found->address != dptr || (length != 0 && length != found->size_bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (!migrates(dptr)) return CUDA_SUCCESS;
  const bool is_own = home_of(dptr) == ActingSession::index();
  const ActingSession acting(home_of(dptr));
  return ManagedMemory::instance().attach(dptr, flags, is_own ? stream : nullptr);
}

}  // namespace mpsshim::interposer::api
