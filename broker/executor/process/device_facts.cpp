// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/device_facts.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

CUresult collect_device(const Driver& driver, CUdevice device, proto::DeviceFacts& facts) {
  CUresult result = driver->cuDeviceGetName(facts.name, sizeof facts.name, device);
  if (result != CUDA_SUCCESS) return result;
  std::size_t total = 0;
  result = driver->cuDeviceTotalMem_v2(&total, device);
  if (result != CUDA_SUCCESS) return result;
  facts.total_memory_bytes = total;
  facts.is_cpu_device = driver.is_cpu() ? 1 : 0;
  CUuuid uuid{};
  if (driver->cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS) std::memcpy(facts.uuid, uuid.bytes, sizeof facts.uuid);
  if (driver->cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) std::memcpy(facts.uuid_v1, uuid.bytes, sizeof facts.uuid_v1);
  driver->cuDeviceGetPCIBusId(facts.pci_bus_id, sizeof facts.pci_bus_id, device);
  for (std::uint32_t id = 0; id < proto::kMaxDeviceAttribute; ++id) {
    int value = 0;
    const CUresult status = id == 0 ? CUDA_ERROR_INVALID_VALUE : driver->cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(id), device);
    facts.attribute_status[id] = static_cast<std::uint16_t>(status);
    facts.attribute[id] = value;
  }
  return CUDA_SUCCESS;
}

// What the driver does not know of two devices is left as it is: no access.
void collect_peer(const Driver& driver, CUdevice device, CUdevice other, proto::PeerFacts& facts) {
  int can_access = 0;
  if (driver->cuDeviceCanAccessPeer(&can_access, device, other) == CUDA_SUCCESS) facts.can_access = can_access != 0 ? 1 : 0;
  for (std::uint32_t id = 1; id < proto::kMaxPeerAttribute; ++id) {
    int value = 0;
    facts.attribute_status[id] =
        static_cast<std::uint16_t>(driver->cuDeviceGetP2PAttribute(&value, static_cast<CUdevice_P2PAttribute>(id), device, other));
    facts.attribute[id] = value;
  }
  // All in one call: an executor's next life asks again, and others wait for it.
  constexpr unsigned kOperations = 13;  // CU_ATOMIC_OPERATION_MAX
  static_assert(kOperations <= proto::kMaxAtomicOperations);
  std::array<CUatomicOperation, kOperations> operations{};
  for (unsigned id = 0; id < kOperations; ++id) operations[id] = static_cast<CUatomicOperation>(id);
  std::array<unsigned, kOperations> capabilities{};
  const CUresult asked = driver->cuDeviceGetP2PAtomicCapabilities(capabilities.data(), operations.data(), kOperations, device, other);
  if (asked == CUDA_SUCCESS) std::copy(capabilities.begin(), capabilities.end(), facts.atomic_capability);
}

void collect_peers(const Driver& driver, proto::DriverFacts& facts) {
  const auto count = static_cast<CUdevice>(facts.device_count);
  for (CUdevice device = 0; device < count; ++device) {
    for (CUdevice other = 0; other < count; ++other) {
      if (device != other) collect_peer(driver, device, other, facts.peer[device][other]);
    }
  }
}

void collect_context(const Driver& driver, CUcontext context, proto::DeviceFacts& facts) {
  for (std::uint32_t limit = 0; limit < proto::kMaxContextLimits; ++limit) {
    std::size_t value = 0;
    facts.context_limit_status[limit] = static_cast<std::uint16_t>(driver->cuCtxGetLimit(&value, static_cast<CUlimit>(limit)));
    facts.context_limit[limit] = value;
  }
  int least = 0;
  int greatest = 0;
  driver->cuCtxGetStreamPriorityRange(&least, &greatest);
  facts.least_stream_priority = least;
  facts.greatest_stream_priority = greatest;
  unsigned version = 0;
  driver->cuCtxGetApiVersion(context, &version);
  facts.context_api_version = version;
}

}  // namespace

CUresult collect_facts(const Driver& driver, CUdevice device, CUcontext context, proto::DriverFacts& facts) {
  facts.size_bytes = sizeof facts;
  CUresult result = driver->cuDriverGetVersion(&facts.driver_version);
  if (result != CUDA_SUCCESS) return result;
  facts.module_loading_mode = CU_MODULE_LAZY_LOADING;
  int count = 0;
  if ((result = driver->cuDeviceGetCount(&count)) != CUDA_SUCCESS) return result;
  const int told = std::min(count, static_cast<int>(proto::kMaxDevices));
  facts.device_count = 0;
  for (CUdevice each = 0; each < told; ++each) {
    if ((result = collect_device(driver, each, facts.device[each])) != CUDA_SUCCESS) {
      if (each <= device) return result;
      log_warning("Device {} cannot be asked what it is ({}): clients see the {} before it.", each, driver.describe(result), each);
      break;
    }
    // Of the other devices there is no context to ask: theirs have the limits of this one's.
    collect_context(driver, context, facts.device[each]);
    ++facts.device_count;
  }
  collect_peers(driver, facts);
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::broker
