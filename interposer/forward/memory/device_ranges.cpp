// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/device_ranges.hpp"

#include "interposer/forward/memory/device_memory.hpp"
#include "interposer/forward/memory/external_memory.hpp"
#include "interposer/forward/memory/ipc_memory.hpp"
#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/forward/memory/virtual_memory.hpp"

namespace mpsshim::interposer::forward {

std::optional<DeviceRange> find_device_range(std::uint64_t address) {
  // What lies in allocations of DeviceMemory that the application does not know comes first.
  std::optional<ManagedMemory::Found> managed;
  if (ManagedMemory::instance().look(address, managed)) {
    if (!managed) return std::nullopt;
    DeviceRange range;
    range.range = managed->range;
    range.owner = {managed->context, managed->buffer_id};
    range.is_managed = true;
    range.is_variable = managed->is_variable;
    return range;
  }
  // Likewise the pools: their segments are allocations of DeviceMemory, which the application does not know.
  std::optional<MemoryPools::Found> pooled;
  if (MemoryPools::instance().look(address, pooled)) {
    if (!pooled) return std::nullopt;
    DeviceRange range;
    range.range = pooled->range;
    range.owner = pooled->owner;
    range.pool = pooled->pool;
    return range;
  }
  // Likewise what is mapped for another process's memory.
  std::optional<IpcMemory::Found> imported;
  if (IpcMemory::instance().look(address, imported)) {
    if (!imported) return std::nullopt;
    DeviceRange range;
    range.range = imported->range;
    range.owner = imported->owner;
    range.pool = imported->pool;
    range.is_imported = true;
    return range;
  }
  if (const auto mapped = VirtualMemory::instance().find(address)) {
    DeviceRange range;
    range.range = mapped->range;
    range.owner = {nullptr, mapped->buffer_id};
    range.is_mapped = true;
    range.is_accessible = mapped->is_accessible;
    range.is_exportable = mapped->is_exportable;
    return range;
  }
  if (const auto external = ExternalMemories::instance().find(address)) {
    DeviceRange range;
    range.range = external->range;
    range.owner = external->owner;
    range.is_imported = true;
    range.is_external = true;
    return range;
  }
  const auto allocation = DeviceMemory::instance().find(address);
  if (!allocation) return std::nullopt;
  DeviceRange range;
  range.range = allocation->range;
  range.owner = allocation->owner;
  return range;
}

bool is_usable(std::uint64_t address, std::uint64_t bytes) {
  for (;;) {
    const std::optional<DeviceRange> here = find_device_range(address);
    if (!here || !here->is_accessible) return false;
    if (here->range.holds(address, bytes)) return true;
    if (!here->is_mapped) return false;
    bytes -= here->range.end() - address;
    address = here->range.end();
  }
}

}  // namespace mpsshim::interposer::forward
