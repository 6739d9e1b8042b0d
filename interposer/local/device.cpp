// SPDX-License-Identifier: Apache-2.0
// Device management, and what devices can do with one another's memory, from the published facts (CUDA Driver API manual, "Device Management",
// "Peer Context Memory Access").
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <limits>

#include "gen/api_declarations.hpp"
#include "interposer/environment.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

namespace {

// As much of `text` as fits, always terminated, like NVIDIA's driver does it.
CUresult copy_text(char* destination, int length, const char* text) {
  if (destination == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(destination, static_cast<std::size_t>(length), "%s", text);
  return CUDA_SUCCESS;
}

int attribute_or_zero(const proto::DeviceFacts& facts, CUdevice_attribute attribute) {
  int value = 0;
  return device_attribute(facts, attribute, value) == CUDA_SUCCESS ? value : 0;
}

struct PciLocation {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  unsigned function = 0;
  bool operator==(const PciLocation&) const = default;
};

// [domain]:[bus]:[device].[function] with the domain and the function left out where they are 0; everything is hexadecimal.
bool parse_pci(const char* text, PciLocation& location) {
  char rest = '\0';
  PciLocation full;
  if (std::sscanf(text, "%x:%x:%x.%x%c", &full.domain, &full.bus, &full.device, &full.function, &rest) == 4 ||
      std::sscanf(text, "%x:%x:%x%c", &full.domain, &full.bus, &full.device, &rest) == 3) {
    location = full;
    return true;
  }
  PciLocation plain;
  if (std::sscanf(text, "%x:%x.%x%c", &plain.bus, &plain.device, &plain.function, &rest) == 3 ||
      std::sscanf(text, "%x:%x%c", &plain.bus, &plain.device, &rest) == 2) {
    location = plain;
    return true;
  }
  return false;
}

}  // namespace

CUresult cuDeviceGetCount(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = device_count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  const proto::DeviceFacts* facts = device_facts(dev);
  if (facts == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return copy_text(name, len, facts->name);
}

// Both versions: the first gives the GPU's UUID, this one the MIG device's; an executor serves whole GPUs or one MIG device, so they agree.
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  const proto::DeviceFacts* facts = device_facts(dev);
  if (facts == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(uuid, facts->uuid, sizeof *uuid);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  const proto::DeviceFacts* facts = device_facts(dev);
  if (facts == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = facts->total_memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  const proto::DeviceFacts* facts = device_facts(dev);
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (facts == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (attrib == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT && environment_switch(Variable::context_percentages)) {
    const auto context = find_context(current_context());
    const bool has_part = context && context->device == dev && context->part != proto::GreenContextId{};
    if (has_part) return *pi = static_cast<int>(forward::multiprocessors_of_context(current_context())), CUDA_SUCCESS;
  }
  return device_attribute(*facts, attrib, *pi);
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  const proto::DeviceFacts* facts = device_facts(dev);
  if (facts == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *major = attribute_or_zero(*facts, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  *minor = attribute_or_zero(*facts, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
  const proto::DeviceFacts* facts = device_facts(dev);
  if (facts == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto get = [facts](CUdevice_attribute attribute) { return attribute_or_zero(*facts, attribute); };
  prop->maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  prop->maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  prop->maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  prop->maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  prop->maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  prop->maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  prop->maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  prop->sharedMemPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  prop->totalConstantMemory = get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  prop->SIMDWidth = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  prop->memPitch = get(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  prop->regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  prop->clockRate = get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  prop->textureAlign = get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return CUDA_SUCCESS;
}

// Contexts with a part of the multiprocessors are green contexts in the executor.
CUresult cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType type, CUdevice dev) {
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (pi == nullptr || type < 0 || type >= CU_EXEC_AFFINITY_TYPE_MAX) return CUDA_ERROR_INVALID_VALUE;
  *pi = driver_has_shares() ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  const proto::DeviceFacts* facts = device_facts(dev);
  if (facts == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const CUresult copied = copy_text(pciBusId, len, facts->pci_bus_id);
  // Unlike a name, one that is cut off is an error.
  const bool fits = len > 0 && std::strlen(facts->pci_bus_id) < static_cast<std::size_t>(len);
  return copied != CUDA_SUCCESS || fits ? copied : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
  if (dev == nullptr || pciBusId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  PciLocation wanted;
  if (!parse_pci(pciBusId, wanted)) return CUDA_ERROR_INVALID_VALUE;
  for (CUdevice device = 0; device < device_count(); ++device) {
    PciLocation location;
    if (parse_pci(device_facts(device)->pci_bus_id, location) && location == wanted) {
      *dev = device;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  if (device_facts(dev) == nullptr || device_facts(peerDev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (canAccessPeer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *canAccessPeer = static_cast<int>(peer_facts(dev, peerDev).can_access);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice) {
  if (device_facts(srcDevice) == nullptr || device_facts(dstDevice) == nullptr || srcDevice == dstDevice) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto id = static_cast<std::uint32_t>(attrib);
  if (id == 0 || id >= proto::kMaxPeerAttribute) return CUDA_ERROR_INVALID_VALUE;
  const proto::PeerFacts& facts = peer_facts(srcDevice, dstDevice);
  if (facts.attribute_status[id] == CUDA_ERROR_NOT_SUPPORTED) return CUDA_ERROR_INVALID_VALUE;  // a driver without the function
  // Arrays are their own session's alone.
  *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED ? 0 : facts.attribute[id];
  return static_cast<CUresult>(facts.attribute_status[id]);
}

CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int* capabilities, const CUatomicOperation* operations, unsigned int count, CUdevice srcDevice,
                                          CUdevice dstDevice) {
  constexpr unsigned kOperations = 13;  // CU_ATOMIC_OPERATION_MAX
  if (device_facts(srcDevice) == nullptr || device_facts(dstDevice) == nullptr || srcDevice == dstDevice) return CUDA_ERROR_INVALID_DEVICE;
  if (capabilities == nullptr || operations == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (std::any_of(operations, operations + count, [](CUatomicOperation one) { return static_cast<unsigned>(one) >= kOperations; })) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const proto::PeerFacts& facts = peer_facts(srcDevice, dstDevice);
  std::transform(operations, operations + count, capabilities, [&](CUatomicOperation one) { return facts.atomic_capability[one]; });
  return CUDA_SUCCESS;
}

// The ABI of CUDA 3.1 and older: as much as 32 bits can say.
CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice dev) {
  std::size_t all = 0;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = api::cuDeviceTotalMem_v2(&all, dev); error != CUDA_SUCCESS) return error;
  *bytes = static_cast<unsigned int>(std::min<std::size_t>(all, std::numeric_limits<unsigned int>::max()));
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
