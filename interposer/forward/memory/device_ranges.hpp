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
};

// The allocation of this process that holds `address`. Variables of modules are no allocations: see Globals.
[[nodiscard]] std::optional<DeviceRange> find_device_range(std::uint64_t address);

}  // namespace mpsshim::interposer::forward
