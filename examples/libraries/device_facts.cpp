// SPDX-License-Identifier: Apache-2.0
// What a program sees of its device: every attribute of the driver API, names and limits.
#include <cuda.h>

#include "report.hpp"

int main() {
  CHECKED(cuInit(0));
  int count = 0, version = 0;
  CHECKED(cuDeviceGetCount(&count));
  CHECKED(cuDriverGetVersion(&version));
  std::printf("%d devices, driver version %d\n", count, version);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    CHECKED(cuDeviceGet(&device, ordinal));
    char name[256] = {}, bus[32] = {};
    std::size_t bytes = 0;
    CUuuid uuid = {};
    CHECKED(cuDeviceGetName(name, sizeof name, device));
    CHECKED(cuDeviceGetPCIBusId(bus, sizeof bus, device));
    CHECKED(cuDeviceTotalMem(&bytes, device));
    CHECKED(cuDeviceGetUuid(&uuid, device));
    std::printf("%s at %s, %zu bytes\n", name, bus, bytes);
    result("uuid", std::vector<char>(uuid.bytes, uuid.bytes + sizeof uuid.bytes));
    for (int attribute = 1; attribute < CU_DEVICE_ATTRIBUTE_MAX; ++attribute) {
      int value = 0;
      const CUresult status = cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), device);
      std::printf("attribute %d: %d (%d)\n", attribute, status == CUDA_SUCCESS ? value : 0, static_cast<int>(status));
    }
    cudaDeviceProp properties = {};
    CHECKED(cudaGetDeviceProperties(&properties, ordinal));
    std::printf("properties: %s, %d.%d, %d multiprocessors, %zu of shared memory a block, warp %d\n", properties.name, properties.major,
                properties.minor, properties.multiProcessorCount, properties.sharedMemPerBlock, properties.warpSize);
    CHECKED(cudaSetDevice(ordinal));
    CHECKED(cudaFree(nullptr));
    for (int limit = 0; limit < static_cast<int>(CU_LIMIT_MAX); ++limit) {
      std::size_t value = 0;
      const CUresult status = cuCtxGetLimit(&value, static_cast<CUlimit>(limit));
      std::printf("limit %d: %zu (%d)\n", limit, status == CUDA_SUCCESS ? value : 0, static_cast<int>(status));
    }
    int least = 0, greatest = 0;
    CHECKED(cuCtxGetStreamPriorityRange(&least, &greatest));
    std::printf("stream priorities %d to %d\n", least, greatest);
  }
}
