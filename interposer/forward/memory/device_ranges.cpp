// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/device_ranges.hpp"

#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/memory_pools.hpp"

namespace mpsshim::interposer::forward {

std::optional<DeviceRange> find_device_range(std::uint64_t address) {
  // First the pools: their segments are allocations of DeviceMemory, which the application does not know.
  std::optional<MemoryPools::Found> pooled;
  if (MemoryPools::instance().look(address, pooled)) {
    return pooled ? std::optional(DeviceRange{pooled->range, pooled->owner, pooled->pool}) : std::nullopt;
  }
  const std::optional<AddressRange> allocation = DeviceMemory::instance().find(address);
  if (!allocation) return std::nullopt;
  return DeviceRange{*allocation, DeviceMemory::instance().owner_of(allocation->address), nullptr};
}

}  // namespace mpsshim::interposer::forward
