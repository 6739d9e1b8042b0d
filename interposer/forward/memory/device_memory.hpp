// SPDX-License-Identifier: Apache-2.0
// cuMemAlloc and cuMemFree over DeviceArena: gets chunks from the executor and gives them back. Any thread.
// While one thread waits for a chunk the others go on allocating and freeing what is there.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "gen/cuda_api.hpp"
#include "interposer/channel/lock.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"
#include "interposer/forward/memory/device_arena.hpp"

namespace mpsshim::interposer::forward {

class DeviceMemory {
 public:
  [[nodiscard]] static DeviceMemory& instance();

  [[nodiscard]] CUresult allocate(std::uint64_t bytes, CUcontext context, std::uint64_t& address);
  // Waits for this process's own work, then gives the room back. CUDA_ERROR_INVALID_VALUE if `address` is no allocation's base.
  [[nodiscard]] CUresult free(std::uint64_t address);
  // The same for memory that nothing uses any more.
  [[nodiscard]] CUresult give_back(std::uint64_t address);
  // The allocation that holds `address`.
  [[nodiscard]] std::optional<AddressRange> find(std::uint64_t address) const;
  using Owner = AllocationOwner;
  [[nodiscard]] Owner owner_of(std::uint64_t base) const;
  void free_all_of(CUcontext context);
  // Of chunks that are kept though nothing is in them: free to this process, taken to the driver.
  [[nodiscard]] std::uint64_t kept_bytes() const;

 private:
  [[nodiscard]] bool try_allocate(std::uint64_t bytes, CUcontext context, std::uint64_t& address);
  [[nodiscard]] CUresult add_chunk(std::uint64_t bytes);
  [[nodiscard]] CUresult create_chunk(std::uint64_t chunk_bytes, AddressRange& chunk);
  // Both with growth_mutex_ held.
  [[nodiscard]] CUresult create_chunk_growing(std::uint64_t chunk_bytes, AddressRange& chunk);
  [[nodiscard]] CUresult release(std::span<const AddressRange> chunks);

  std::mutex growth_mutex_;    // held by the one thread that asks for a chunk or gives some back; never taken under mutex_
  mutable ChannelLock mutex_;  // held for a few map operations: contending threads look for a moment before they sleep
  DeviceArena arena_;
  std::map<std::uint64_t, Owner> owners_;  // by base
};

}  // namespace mpsshim::interposer::forward
