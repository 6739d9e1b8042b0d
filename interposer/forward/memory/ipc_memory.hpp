// SPDX-License-Identifier: Apache-2.0
// Inter-process memory handles (CUDA Driver API manual, "cuIpcGetMemHandle"): an allocation of one client, opened by another. What is shared is
// the chunk that the allocation lies in, as natively; the opening process maps it as memory of its own and may use the allocation. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"
#include "proto/client_requests.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class IpcMemory {
 public:
  [[nodiscard]] static IpcMemory& instance();

  // CUDA_ERROR_INVALID_VALUE if `address` is not in an allocation of cuMemAlloc's.
  [[nodiscard]] CUresult name(std::uint64_t address, CUipcMemHandle& handle);
  // The same handle again is the same address, to be closed as often. CUDA_ERROR_INVALID_CONTEXT for memory of this process.
  [[nodiscard]] CUresult open(const CUipcMemHandle& handle, CUcontext context, std::uint64_t& address);
  [[nodiscard]] CUresult close(std::uint64_t address);

  // The same for memory of a pool (SharedPools): where an allocation lies. What is opened is closed by cuMemFree and cuMemFreeAsync.
  struct Place {
    proto::MemoryName chunk;
    std::uint64_t offset = 0;
    std::uint64_t size_bytes = 0;
    bool operator==(const Place&) const = default;
  };
  [[nodiscard]] static CUresult place_of(const AddressRange& allocation, Place& place);
  [[nodiscard]] CUresult open(const Place& place, CUmemoryPool pool, CUcontext context, std::uint64_t& address);
  struct Found {
    AddressRange range;
    AllocationOwner owner;
    CUmemoryPool pool = nullptr;
  };
  // True if `address` lies in what is mapped for an opened handle; `found` is then the allocation, if that holds it.
  [[nodiscard]] bool look(std::uint64_t address, std::optional<Found>& found) const;

 private:
  struct Content {  // of a handle
    std::uint64_t magic = 0;
    Place place;
    std::uint64_t reserved[3] = {};
  };
  static_assert(sizeof(Content) == sizeof(CUipcMemHandle));
  struct Opened {
    Place place;
    CUmemoryPool pool = nullptr;
    AddressRange mapped;
    AddressRange allocation;
    AllocationOwner owner;
    std::uint64_t times = 1;
  };

  [[nodiscard]] CUresult map(const Place& place, AddressRange& mapped);

  Mutex order_mutex_;                                          // opening and closing
  mutable Mutex mutex_;                                        // opened_
  std::map<std::uint64_t, Opened> opened_ GUARDED_BY(mutex_);  // by address of what is mapped
  std::atomic<bool> has_been_used_{false};
};

}  // namespace mpsshim::interposer::forward
