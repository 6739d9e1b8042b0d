// SPDX-License-Identifier: Apache-2.0
// Attributes that describe the process rather than the device, or promise a part of the API that this library does not offer. Everything else
// is the executor's driver speaking.
#include <algorithm>
#include <array>

#include "interposer/local/devices.hpp"

namespace mpsshim::interposer {

namespace {

struct Override {
  CUdevice_attribute attribute;
  int value;
  const char* reason;
};

constexpr const char* kOtherProcess = "the GPU works in the executor's address space: it cannot see this process's pageable memory";
constexpr const char* kManaged = "managed memory is host memory, whatever the driver has";
constexpr const char* kRegister = "registered memory has another address on the device, if any";
constexpr const char* kVirtual = "memory is of the device alone; its handles are descriptors that other clients know";
constexpr const char* kPools = "pools are this library's own: of the device, and of one process";
constexpr const char* kMemOps = "stream memory operations are not offered";
constexpr const char* kImport = "objects of other processes and interfaces cannot be imported";

constexpr std::array kOverrides = {
    Override{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1, kManaged},                                                       // 83
    Override{CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0, kOtherProcess},                                          // 88
    Override{CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1, kManaged},                                            // 89
    Override{CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0, kRegister},                             // 91
    Override{CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 0, kMemOps},                                             // 92
    Override{CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 0, kMemOps},                                      // 93
    Override{CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 0, kMemOps},                                      // 94
    Override{CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0, "cooperative launches are not offered"},                     // 95
    Override{CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 0, "a session has one device"},                    // 96
    Override{CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1, kRegister},                                             // 99
    Override{CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0, kOtherProcess},                    // 100
    Override{CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0, kManaged},                                  // 101
    Override{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1, kVirtual},                                  // 102
    Override{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1, kVirtual},                          // 103
    Override{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0, kVirtual},                              // 110
    Override{CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 0, "sparse arrays are not offered"},                   // 112
    Override{CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0, kRegister},                                   // 113
    Override{CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 0, kImport},                                  // 114
    Override{CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1, kPools},                                                 // 115
    Override{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0, "peer drivers look for the memory in this process"},  // 116
    Override{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 0, "GPUDirect RDMA is not offered"},          // 117
    Override{CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0, kPools},                                         // 119
    Override{CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 0, "deferred arrays are not offered"},       // 121
    Override{CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0, kMemOps},                                         // 122
    Override{CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 0, kMemOps},                                         // 123
    Override{CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0, kVirtual},                                                    // 124
    Override{CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1, "such events are words that clients share"},                // 125
    Override{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0, kVirtual},                                         // 128
    Override{CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 0, "cuLibraryGetUnifiedFunction is not offered"},        // 129
    Override{CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0, "multicast objects are not offered"},                       // 132
    Override{CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 1, "this is what sharing the device looks like from inside"},          // 133
    // By number where a cuda.h of 12.4 does not have the name.
    Override{static_cast<CUdevice_attribute>(136), 0, "batched decompression is not offered"},  // MEM_DECOMPRESS_ALGORITHM_MASK
    Override{static_cast<CUdevice_attribute>(137), 0, "batched decompression is not offered"},  // MEM_DECOMPRESS_MAXIMUM_LENGTH
    Override{static_cast<CUdevice_attribute>(141), 0, kVirtual},                                // HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    Override{static_cast<CUdevice_attribute>(142), 0, kPools},                                  // HOST_NUMA_MEMORY_POOLS_SUPPORTED
    Override{static_cast<CUdevice_attribute>(143), 0, kImport},                                 // HOST_NUMA_MULTINODE_IPC_SUPPORTED
    Override{static_cast<CUdevice_attribute>(144), 0, kPools},                                  // HOST_MEMORY_POOLS_SUPPORTED
    Override{static_cast<CUdevice_attribute>(145), 0, kVirtual},                                // HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    Override{static_cast<CUdevice_attribute>(146), 0, kVirtual},                                // HOST_ALLOC_DMA_BUF_SUPPORTED
};

constexpr bool ascending() {
  for (std::size_t i = 1; i < kOverrides.size(); ++i) {
    if (kOverrides[i - 1].attribute >= kOverrides[i].attribute) return false;
  }
  return true;
}
static_assert(ascending(), "device_attribute() searches the table by halves");

}  // namespace

CUresult device_attribute(const proto::DeviceFacts& facts, int attribute, int& value) {
  if (attribute <= 0 || attribute >= static_cast<int>(proto::kMaxDeviceAttribute)) return CUDA_ERROR_INVALID_VALUE;
  const auto status = static_cast<CUresult>(facts.attribute_status[attribute]);
  if (status != CUDA_SUCCESS) return status;
  const auto row = std::lower_bound(kOverrides.begin(), kOverrides.end(), attribute,
                                    [](const Override& candidate, int wanted) { return static_cast<int>(candidate.attribute) < wanted; });
  const bool overridden = row != kOverrides.end() && static_cast<int>(row->attribute) == attribute;
  value = overridden ? row->value : facts.attribute[attribute];
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer
