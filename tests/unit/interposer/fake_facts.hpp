// SPDX-License-Identifier: Apache-2.0
// Driver facts as an executor would publish them, for tests: devices whose answers tell them apart.
#pragma once

#include <cstdio>
#include <cstring>

#include "gen/cuda_api.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::test {

inline constexpr int kFakeDriverVersion = 13010;

inline void fill_fake_device(proto::DeviceFacts& device, unsigned number) {
  std::snprintf(device.name, sizeof device.name, "Fake GPU %u", number);
  for (unsigned i = 0; i < 16; ++i) device.uuid[i] = static_cast<std::uint8_t>(number * 16 + i + (i == 0 ? 0xa0 : 0));
  std::memcpy(device.uuid_v1, device.uuid, sizeof device.uuid);
  std::snprintf(device.pci_bus_id, sizeof device.pci_bus_id, "0000:%02X:00.0", 0x19 + number);
  device.total_memory_bytes = (number + 1ull) << 30;
  for (int& value : device.attribute) value = 1000;
  for (int id = 148; id < static_cast<int>(proto::kMaxDeviceAttribute); ++id) device.attribute_status[id] = CUDA_ERROR_INVALID_VALUE;
  device.attribute[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = 0;
  device.attribute[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = static_cast<int>(0x19 + number);
  device.attribute[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] = 0;
  device.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9;
  device.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 0;
  device.context_limit[CU_LIMIT_STACK_SIZE] = 1024;
  device.context_limit[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  for (std::uint32_t limit = 10; limit < proto::kMaxContextLimits; ++limit) device.context_limit_status[limit] = CUDA_ERROR_UNSUPPORTED_LIMIT;
  device.least_stream_priority = 0;
  device.greatest_stream_priority = -5;
  device.context_api_version = 3020;
}

inline void fill_fake_facts(proto::DriverFacts& facts, std::uint32_t devices) {
  std::memset(&facts, 0, sizeof facts);
  facts.size_bytes = sizeof facts;
  facts.driver_version = kFakeDriverVersion;
  facts.device_count = devices;
  facts.module_loading_mode = CU_MODULE_LAZY_LOADING;
  for (std::uint32_t i = 0; i < devices; ++i) fill_fake_device(facts.device[i], i);
}

}  // namespace mpsshim::test
