// SPDX-License-Identifier: Apache-2.0
// Everything a client may ask about the driver and its devices without a round trip. An executor fills it once from its real driver; the
// control process publishes it as a read-only sealed memory file. Plain data: no pointers, fixed sizes.
#pragma once

#include <cstdint>

namespace mpsshim::proto {

inline constexpr std::uint32_t kMaxDevices = 16;
inline constexpr std::uint32_t kMaxDeviceAttribute = 1024;  // ids 1..1023 are probed
inline constexpr std::uint32_t kMaxContextLimits = 32;

struct DeviceFacts {
  char name[256];                // cuDeviceGetName, zero-terminated
  std::uint8_t uuid[16];         // cuDeviceGetUuid_v2
  std::uint8_t uuid_v1[16];      // cuDeviceGetUuid
  char pci_bus_id[32];           // cuDeviceGetPCIBusId
  std::uint64_t total_memory_bytes;
  std::int32_t attribute[kMaxDeviceAttribute];         // cuDeviceGetAttribute; valid where attribute_status is 0
  std::uint16_t attribute_status[kMaxDeviceAttribute]; // CUresult
  std::uint64_t context_limit[kMaxContextLimits];      // cuCtxGetLimit defaults; index CUlimit
  std::uint16_t context_limit_status[kMaxContextLimits];
  std::int32_t least_stream_priority;
  std::int32_t greatest_stream_priority;
  std::uint32_t context_api_version;
  std::uint32_t is_cpu_device;  // 1: the CPU driver's, which runs PTX only, and not all of it
};

inline constexpr std::uint32_t kMaxPeerAttribute = 8;  // ids 1..7 are probed
inline constexpr std::uint32_t kMaxAtomicOperations = 16;

// What one device can do with another's memory; all 0 where the driver does not say, and of a device with itself.
struct PeerFacts {
  std::uint32_t can_access;                               // cuDeviceCanAccessPeer
  std::int32_t attribute[kMaxPeerAttribute];              // cuDeviceGetP2PAttribute; valid where attribute_status is 0
  std::uint16_t attribute_status[kMaxPeerAttribute];      // CUresult
  std::uint32_t atomic_capability[kMaxAtomicOperations];  // cuDeviceGetP2PAtomicCapabilities, by CUatomicOperation
};

struct DriverFacts {
  std::uint32_t size_bytes;      // sizeof(DriverFacts) of the writer; a reader takes what it knows
  std::int32_t driver_version;   // cuDriverGetVersion
  std::uint32_t device_count;
  std::uint32_t module_loading_mode;  // CUmoduleLoadingMode
  DeviceFacts device[kMaxDevices];
  PeerFacts peer[kMaxDevices][kMaxDevices];  // the accessing device, then the one whose memory it is
};
static_assert(sizeof(DeviceFacts) % 8 == 0 && sizeof(DriverFacts) % 8 == 0);

}  // namespace mpsshim::proto
