// SPDX-License-Identifier: Apache-2.0
// Arrays (CUDA Driver API manual, cuArray* and cuMipmappedArray* of "Memory Management").
#include "gen/api_declarations.hpp"
#include "interposer/entry.hpp"
#include "interposer/forward/arrays/arrays.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// Memory is bound to such arrays later, by cuMemMapArrayAsync, which is not offered.
constexpr unsigned int kWithoutMemory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;

template <typename Handle, typename F>
CUresult with_array(Handle handle, F&& f) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  Array* array = Arrays::instance().resolve(handle);
  return array != nullptr ? f(*array) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult create(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, std::uint32_t levels, Array*& array) {
  if ((descriptor.Flags & kWithoutMemory) != 0) return unsupported(ApiId::cuArray3DCreate_v2);
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  return Arrays::instance().create(descriptor, levels, owning_context(), array);
}

template <typename Handle>
CUresult find_part(CUarray* part, Handle parent, unsigned int number) {
  if (part == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_array(parent, [&](Array& array) {
    if (array.is_mipmapped() && number >= array.levels) return CUDA_ERROR_INVALID_VALUE;
    Array* found = nullptr;
    const CUresult error = Arrays::instance().part(array, number, found);
    if (error == CUDA_SUCCESS) *part = to_handle<CUarray>(found->id);
    return error;
  });
}

// Sparse arrays and arrays without memory are not made here: the question is about another kind of array than there is.
template <typename Handle>
CUresult of_arrays_without_memory(const void* result, Handle array) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_array(array, [](Array&) { return CUDA_ERROR_INVALID_VALUE; });
}

}  // namespace

CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  if (pHandle == nullptr || pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Array* array = nullptr;
  const CUresult error = create(*pAllocateArray, 0, array);
  if (error == CUDA_SUCCESS) *pHandle = to_handle<CUarray>(array->id);
  return error;
}

CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  if (pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR full{pAllocateArray->Width, pAllocateArray->Height, 0, pAllocateArray->Format, pAllocateArray->NumChannels, 0};
  return api::cuArray3DCreate_v2(pHandle, &full);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_array(hArray, [&](Array& array) {
    *pArrayDescriptor = array.descriptor;
    return CUDA_SUCCESS;
  });
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_array(hArray, [&](Array& array) {
    const CUDA_ARRAY3D_DESCRIPTOR& full = array.descriptor;
    *pArrayDescriptor = {full.Width, full.Height, full.Format, full.NumChannels};
    return CUDA_SUCCESS;
  });
}

CUresult cuArrayDestroy(CUarray hArray) {
  return with_array(hArray, [](const Array& array) { return array.is_part ? CUDA_ERROR_INVALID_HANDLE : Arrays::instance().destroy(array.id); });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc, unsigned int numMipmapLevels) {
  if (pHandle == nullptr || pMipmappedArrayDesc == nullptr || numMipmapLevels == 0) return CUDA_ERROR_INVALID_VALUE;
  Array* array = nullptr;
  const CUresult error = create(*pMipmappedArrayDesc, numMipmapLevels, array);
  if (error == CUDA_SUCCESS) *pHandle = to_handle<CUmipmappedArray>(array->id);
  return error;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  return with_array(hMipmappedArray, [](const Array& array) { return Arrays::instance().destroy(array.id); });
}

CUresult cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray, unsigned int level) {
  return find_part(pLevelArray, hMipmappedArray, level);
}
CUresult cuArrayGetPlane(CUarray* pPlaneArray, CUarray hArray, unsigned int planeIdx) { return find_part(pPlaneArray, hArray, planeIdx); }

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties, CUarray array) {
  return of_arrays_without_memory(sparseProperties, array);
}
CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES* sparseProperties, CUmipmappedArray mipmap) {
  return of_arrays_without_memory(sparseProperties, mipmap);
}
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements, CUarray array, CUdevice device) {
  return device_facts(device) != nullptr ? of_arrays_without_memory(memoryRequirements, array) : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements, CUmipmappedArray mipmap, CUdevice device) {
  return device_facts(device) != nullptr ? of_arrays_without_memory(memoryRequirements, mipmap) : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace mpsshim::interposer::api
