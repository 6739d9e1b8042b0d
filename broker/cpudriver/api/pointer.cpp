// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Unified Addressing". Attributes that name things this driver does not have (peer tokens,
// pools, RDMA) are answered with CUDA_ERROR_NOT_SUPPORTED, never with a made-up value.
#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/context/context.hpp"
#include "broker/cpudriver/memory/memory_map.hpp"

using namespace mpsshim::cpudriver;

namespace {

template <class T>
CUresult answer(void* data, T value) {
  *static_cast<T*>(data) = value;
  return CUDA_SUCCESS;
}

CUresult attribute(void* data, CUpointer_attribute attribute, std::uint64_t address, const MemoryRange& range) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return answer(data, Context::primary().handle());
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer(data, static_cast<unsigned>(range.is_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return answer(data, static_cast<CUdeviceptr>(address));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!range.is_host() && range.kind != MemoryKind::managed) return CUDA_ERROR_INVALID_VALUE;
      return answer(data, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return answer(data, static_cast<unsigned long long>(range.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer(data, range.kind == MemoryKind::managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer(data, static_cast<int>(Devices::get().used()));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer(data, static_cast<CUdeviceptr>(range.begin));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer(data, static_cast<std::size_t>(range.size));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return answer(data, true);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// For cuPointerGetAttributes, which answers foreign pointers with zeros instead of an error.
void clear(void* data, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<bool*>(data) = false;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = -2;  // CU_DEVICE_INVALID
      break;
    default:
      *static_cast<std::uint64_t*>(data) = 0;
  }
}

}  // namespace

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute_id, CUdeviceptr ptr) {
  return entry(Needs::initialised, [&] {
    if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto range = MemoryMap::get().containing(ptr);
    return range ? attribute(data, attribute_id, ptr, *range) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes, void** data,
                                        CUdeviceptr ptr) {
  return entry(Needs::initialised, [&]() -> CUresult {
    if (numAttributes == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto range = MemoryMap::get().containing(ptr);
    for (unsigned i = 0; i < numAttributes; ++i) {
      if (!range || attribute(data[i], attributes[i], ptr, *range) != CUDA_SUCCESS) clear(data[i], attributes[i]);
    }
    return CUDA_SUCCESS;
  });
}
