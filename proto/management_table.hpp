// SPDX-License-Identifier: Apache-2.0
// What libmpsshim.so tells the shadow of NVIDIA's management library (interposer/nvml) in the same process: a table that its cuGetExportTable gives
// for an id of the project's own. Both libraries come with one release; a table of another size is not used.
//
// Functions may be called by any thread, also before cuInit, which none of them calls. Devices are the broker's, which CUDA_VISIBLE_DEVICES renumbers
// for CUDA and not for NVML.
#pragma once

#include <array>
#include <cstdint>

#include "proto/device_facts.hpp"

namespace mpsshim::proto {

// A random UUID.
inline constexpr std::array<char, 16> kManagementTableId = {'\x0b', '\x7f', '\x52', '\x9e', '\x34', '\xc1', '\x47', '\x08',
                                                            '\xb6', '\x1d', '\x8a', '\xe3', '\x25', '\x70', '\xf9', '\x6c'};

struct ManagementTable {
  std::uint64_t size_bytes;
  // Of the broker that serves this process, which is settled by the first call; nullptr: none does.
  const DriverFacts* (*facts)();
  // Device memory as cuMemGetInfo has it: the client's limit as the device's size, and what is left of it. False: no session of this process is on
  // it.
  bool (*memory)(std::uint32_t device, std::uint64_t* free_bytes, std::uint64_t* total_bytes);
  // To which the environment holds this process, also without a session; 0: it does not.
  std::uint64_t (*asked_limit_bytes)(std::uint32_t device);
};
static_assert(sizeof(ManagementTable) == 32);

}  // namespace mpsshim::proto
