// SPDX-License-Identifier: Apache-2.0
// What device memory an address means, whichever call made it: the one place that copies, fills and pointer attributes ask. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/allocation_owner.hpp"

namespace mpsshim::interposer::forward {

struct DeviceRange {
  AddressRange range;  // of the allocation, with the size that was asked for
  AllocationOwner owner;
  CUmemoryPool pool = nullptr;  // of stream-ordered memory
  bool is_mapped = false;       // by the application: VirtualMemory
  bool is_imported = false;     // another process's allocation: IpcMemory; or as follows
  bool is_external = false;     // another interface's memory: ExternalMemories
  bool is_managed = false;      // ManagedMemory
  bool is_variable = false;     // of a module, in managed memory
  bool is_accessible = true;
  bool is_exportable = false;
};

// The allocation of this process that holds `address`. Variables of modules are no allocations: see Globals.
[[nodiscard]] std::optional<DeviceRange> find_device_range(std::uint64_t address);

// True if [address, address + bytes) is device memory that may be used: within one allocation, or mappings of the application side by side.
[[nodiscard]] bool is_usable(std::uint64_t address, std::uint64_t bytes);

}  // namespace mpsshim::interposer::forward
