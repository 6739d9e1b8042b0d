// SPDX-License-Identifier: Apache-2.0
// What of NVIDIA's management library (NVML) is answered here, as its API reference has it: results and structures. Toolkits have a header, nvml.h,
// which not every installation of one does, and of which nothing else is needed.
#pragma once

#include <cstdint>

namespace mpsshim::interposer::nvml {

enum class Result : std::uint32_t {
  success = 0,
  uninitialized = 1,
  invalid_argument = 2,
  not_supported = 3,
  not_found = 6,
  insufficient_size = 7,
  driver_not_loaded = 9,
  library_not_found = 12,
  function_not_found = 13,
  memory = 20,
  argument_version_mismatch = 25,
};

struct Memory {  // nvmlMemory_t
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
static_assert(sizeof(Memory) == 24);

struct Memory2 {  // nvmlMemory_v2_t
  unsigned version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
static_assert(sizeof(Memory2) == 40);
inline constexpr unsigned kMemory2Version = sizeof(Memory2) | 2u << 24;

inline constexpr unsigned kUuidBytes = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE

}  // namespace mpsshim::interposer::nvml
