// SPDX-License-Identifier: Apache-2.0
// The toolkit's own rules, so that the figures are those that programs get from a GPU of the same compute capability.
#include <cuda_occupancy.h>

#include "broker/cpudriver/device/attributes.hpp"
#include "broker/cpudriver/modules/launch.hpp"

namespace mpsshim::cpudriver {
namespace {

cudaOccDeviceProp device_properties() {
  cudaOccDeviceProp device;
  device.computeMajor = attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  device.computeMinor = attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  device.maxThreadsPerBlock = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  device.maxThreadsPerMultiprocessor = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  device.regsPerBlock = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  device.regsPerMultiprocessor = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  device.warpSize = attribute_of(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  device.sharedMemPerBlock = static_cast<size_t>(attribute_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  device.sharedMemPerMultiprocessor =
      static_cast<size_t>(attribute_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  device.numSms = attribute_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  device.sharedMemPerBlockOptin =
      static_cast<size_t>(attribute_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  device.reservedSharedMemPerBlock =
      static_cast<size_t>(attribute_of(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK));
  return device;
}

}  // namespace

int resident_blocks(const Function& function, int block_threads, std::size_t dynamic_shared_bytes) {
  if (block_threads <= 0 || dynamic_shared_bytes > static_cast<std::size_t>(function.max_dynamic_shared_bytes())) return 0;
  const cudaOccDeviceProp device = device_properties();
  const ptx::KernelInfo& kernel = function.info();
  cudaOccFuncAttributes attributes;
  attributes.maxThreadsPerBlock = static_cast<int>(kernel.max_threads_per_block);
  attributes.numRegs = static_cast<int>(kernel.registers);
  attributes.sharedSizeBytes = kernel.static_shared_bytes;
  attributes.partitionedGCConfig = PARTITIONED_GC_OFF;
  attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  attributes.maxDynamicSharedSizeBytes = static_cast<size_t>(function.max_dynamic_shared_bytes());
  attributes.numBlockBarriers = 1;
  const cudaOccDeviceState state;
  cudaOccResult result;
  const cudaOccError error =
      cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &attributes, &state, block_threads, dynamic_shared_bytes);
  return error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : 0;
}

}  // namespace mpsshim::cpudriver
