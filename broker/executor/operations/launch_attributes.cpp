// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/operations/launch_attributes.hpp"

#include <cstring>

namespace mpsshim::broker {

namespace {

// Only attributes that are values reach the driver: an event or a device-side node in one would be an address of the client's choosing.
CUresult check_attribute(const CUlaunchAttribute& attribute) {
  switch (static_cast<int>(attribute.id)) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case 11:  // CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, since 12.8
    case 14:  // CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, since 12.5
      return CUDA_SUCCESS;
    // Which of the kernel's own accesses stay in the cache: nothing is read there, and a stream keeps its window when the memory has gone.
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

CUresult check_launch_attributes(const std::byte* attributes, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    CUlaunchAttribute attribute;
    std::memcpy(&attribute, attributes + i * sizeof attribute, sizeof attribute);
    const CUresult result = check_attribute(attribute);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::broker
