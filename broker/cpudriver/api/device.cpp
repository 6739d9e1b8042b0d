// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Initialization", "Version Management", "Error Handling", "Device Management".
#include <cstdio>
#include <cstring>

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/config.hpp"
#include "broker/cpudriver/context/error_names.hpp"
#include "broker/cpudriver/device/attributes.hpp"

using namespace mpsshim::cpudriver;

CUresult CUDAAPI cuInit(unsigned int Flags) {
  return entry(Needs::nothing, [&] {
    if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
    Config::get();  // complains about the environment here, not in the middle of something
    mark_initialised();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pStr = error_name(error);
  return *pStr == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pStr = error_text(error);
  return *pStr == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  return entry(Needs::initialised, [&] {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = 1;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  return entry(Needs::initialised, [&] {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
    *device = 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetName(char* name, int len, CUdevice dev) {
  return entry(Needs::initialised, [&] {
    if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(name, static_cast<std::size_t>(len), "%s", kDeviceName);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  return entry(Needs::initialised, [&] {
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    *uuid = device_uuid();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice dev) {
  return entry(Needs::initialised, [&] {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = Config::get().memory_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  return entry(Needs::initialised, [&] {
    if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    return device_attribute(attrib, *pi) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  return entry(Needs::initialised, [&] {
    constexpr char kBusId[] = "0000:00:00.0";
    if (pciBusId == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(pciBusId, static_cast<std::size_t>(len), "%s", kBusId);
    return static_cast<std::size_t>(len) >= sizeof kBusId ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // cut off
  });
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  return entry(Needs::initialised, [&] {
    if (canAccessPeer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev) || !is_device(peerDev)) return CUDA_ERROR_INVALID_DEVICE;
    *canAccessPeer = 0;  // not of itself
    return CUDA_SUCCESS;
  });
}
