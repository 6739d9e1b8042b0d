// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Initialization", "Version Management", "Error Handling", "Device Management".
#include <cstdio>
#include <cstring>

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/config.hpp"
#include "broker/cpudriver/context/error_names.hpp"
#include "broker/cpudriver/device/attributes.hpp"
#include "broker/cpudriver/memory/array.hpp"

using namespace mpsshim::cpudriver;

CUresult CUDAAPI cuInit(unsigned int Flags) {
  return entry(Needs::nothing, [&] {
    if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (Devices::get().count() == 0) return CUDA_ERROR_NO_DEVICE;  // complains about the environment here, not in the middle of something
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
    *count = Devices::get().count();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  return entry(Needs::initialised, [&] {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
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
    *uuid = device_uuid(Devices::get().machine_index(dev));
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
    if (!device_attribute(attrib, *pi)) return CUDA_ERROR_INVALID_VALUE;
    if (attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *pi = static_cast<int>(Devices::get().machine_index(dev));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  return entry(Needs::initialised, [&] {
    if (pciBusId == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    const int length = std::snprintf(pciBusId, static_cast<std::size_t>(len), "0000:%02x:00.0", Devices::get().machine_index(dev));
    return length < len ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // cut off
  });
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  return entry(Needs::initialised, [&] {
    if (canAccessPeer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev) || !is_device(peerDev)) return CUDA_ERROR_INVALID_DEVICE;
    *canAccessPeer = dev != peerDev && !Config::get().apart ? 1 : 0;  // its memory, as another process exports it
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice) {
  return entry(Needs::initialised, [&] {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(srcDevice) || !is_device(dstDevice) || srcDevice == dstDevice) return CUDA_ERROR_INVALID_DEVICE;
    switch (attrib) {
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = 0; return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = Config::get().apart ? 0 : 1; return CUDA_SUCCESS;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements, CUarray_format format, unsigned numChannels, CUdevice dev) {
  return entry(Needs::initialised, [&] {
    if (maxWidthInElements == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    CUDA_ARRAY3D_DESCRIPTOR description{};
    description.Width = 1;
    description.Format = format;
    description.NumChannels = numChannels;
    if (const CUresult checked = Array::check(description); checked != CUDA_SUCCESS) return checked;
    *maxWidthInElements = static_cast<size_t>(attribute_of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH));
    return CUDA_SUCCESS;
  });
}

// Nobody else writes to this device's memory.
CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope) {
  return entry(Needs::context, [&] {
    const bool is_scope = scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER || scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES;
    return is_scope && target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

// No line of its cache persists.
CUresult CUDAAPI cuCtxResetPersistingL2Cache(void) {
  return entry(Needs::context, [] { return CUDA_SUCCESS; });
}

#if CUDA_VERSION >= 13000
// The device's memory is the host's: whatever a kernel may do to the one it may do to the other.
CUresult CUDAAPI cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities, const CUatomicOperation* operations, unsigned int count,
                                                   CUdevice dev) {
  return entry(Needs::initialised, [&] {
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (capabilities == nullptr || operations == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      const int number = operations[i];
      if (number < CU_ATOMIC_OPERATION_INTEGER_ADD || number > CU_ATOMIC_OPERATION_FLOAT_MAX) return CUDA_ERROR_INVALID_VALUE;
      capabilities[i] = CU_ATOMIC_CAPABILITY_REDUCTION | CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64;
      if (number < CU_ATOMIC_OPERATION_FLOAT_ADD) capabilities[i] |= CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED;
    }
    return CUDA_SUCCESS;
  });
}
#endif
