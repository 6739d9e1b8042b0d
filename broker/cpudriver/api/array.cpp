// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: arrays of "Memory Management", "Texture Object Management", "Surface Object Management". Textures and surfaces can be
// made and asked about; a kernel that uses one cannot be loaded.
#include <mutex>
#include <optional>
#include <set>

#include "broker/cpudriver/api/copy_description.hpp"
#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/memory/array.hpp"
#include "broker/cpudriver/memory/memory_map.hpp"
#include "proto/mutex.hpp"

using namespace mpsshim::cpudriver;

namespace {

template <class Body>
CUresult with_array(CUarray handle, Body&& body) {
  return entry(Needs::context, [&]() -> CUresult {
    const auto array = HandleTable<Array>::get().find(handle);
    return array == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*array);
  });
}

// The smallest number that is free, as GPUs' drivers give them.
class Numbers {
 public:
  unsigned long long take() {
    const std::lock_guard lock(mutex_);
    unsigned long long number = 1;
    while (!used_.insert(number).second) ++number;
    return number;
  }
  bool give_back(unsigned long long number) {
    const std::lock_guard lock(mutex_);
    return used_.erase(number) != 0;
  }

 private:
  mpsshim::Mutex mutex_;
  std::set<unsigned long long> used_ GUARDED_BY(mutex_);
};
Numbers textures;
Numbers surfaces;

bool is_resource(const CUDA_RESOURCE_DESC& resource) {
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: return HandleTable<Array>::get().find(resource.res.array.hArray) != nullptr;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: return HandleTable<MipmappedArray>::get().find(resource.res.mipmap.hMipmappedArray) != nullptr;
    case CU_RESOURCE_TYPE_LINEAR: return MemoryMap::get().containing(resource.res.linear.devPtr).has_value();
    case CU_RESOURCE_TYPE_PITCH2D: return MemoryMap::get().containing(resource.res.pitch2D.devPtr).has_value();
  }
  return false;
}

}  // namespace

CUresult CUDAAPI cuArray3DCreate(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  return entry(Needs::context, [&] {
    if (pHandle == nullptr || pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Array> array;
    const CUresult result = Array::create(*pAllocateArray, array);
    if (result == CUDA_SUCCESS) *pHandle = static_cast<CUarray>(HandleTable<Array>::get().add(std::move(array)));
    return result;
  });
}

CUresult CUDAAPI cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  if (pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR full{pAllocateArray->Width, pAllocateArray->Height, 0, pAllocateArray->Format, pAllocateArray->NumChannels, 0};
  return cuArray3DCreate(pHandle, &full);
}

CUresult CUDAAPI cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  return with_array(hArray, [&](const Array& array) {
    if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pArrayDescriptor = array.descriptor;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  return with_array(hArray, [&](const Array& array) {
    if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pArrayDescriptor = {array.descriptor.Width, array.descriptor.Height, array.descriptor.Format, array.descriptor.NumChannels};
    return CUDA_SUCCESS;
  });
}

// Waits for every kernel, as on a GPU.
CUresult CUDAAPI cuArrayDestroy(CUarray hArray) {
  return entry(Needs::context, [&] {
    const Scheduler::QuietWindow window(Scheduler::get(), false);
    return HandleTable<Array>::get().remove(hArray) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc, unsigned int numMipmapLevels) {
  return entry(Needs::context, [&] {
    if (pHandle == nullptr || pMipmappedArrayDesc == nullptr || numMipmapLevels == 0) return CUDA_ERROR_INVALID_VALUE;
    auto mipmapped = std::make_shared<MipmappedArray>();
    CUDA_ARRAY3D_DESCRIPTOR level = *pMipmappedArrayDesc;
    for (unsigned i = 0; i < numMipmapLevels; ++i) {
      std::shared_ptr<Array> array;
      const CUresult result = Array::create(level, array);
      if (result != CUDA_SUCCESS) return result;
      mipmapped->levels.push_back(std::move(array));
      level = half_of(level);
    }
    for (const auto& array : mipmapped->levels) HandleTable<Array>::get().add(array);
    *pHandle = static_cast<CUmipmappedArray>(HandleTable<MipmappedArray>::get().add(std::move(mipmapped)));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  return entry(Needs::context, [&] {
    const Scheduler::QuietWindow window(Scheduler::get(), false);
    const auto mipmapped = HandleTable<MipmappedArray>::get().remove(hMipmappedArray);
    if (mipmapped == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& level : mipmapped->levels) HandleTable<Array>::get().remove(level.get());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray, unsigned int level) {
  return entry(Needs::context, [&] {
    const auto mipmapped = HandleTable<MipmappedArray>::get().find(hMipmappedArray);
    if (mipmapped == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (pLevelArray == nullptr || level >= mipmapped->levels.size()) return CUDA_ERROR_INVALID_VALUE;
    *pLevelArray = reinterpret_cast<CUarray>(mipmapped->levels[level].get());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc, const CUDA_TEXTURE_DESC* pTexDesc,
                                   const CUDA_RESOURCE_VIEW_DESC*) {
  return entry(Needs::context, [&] {
    if (pTexObject == nullptr || pResDesc == nullptr || pTexDesc == nullptr || !is_resource(*pResDesc)) return CUDA_ERROR_INVALID_VALUE;
    *pTexObject = textures.take();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuTexObjectDestroy(CUtexObject texObject) {
  return entry(Needs::context, [&] {
    (void)textures.give_back(texObject);  // of none it is no error
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  return entry(Needs::context, [&] {
    const bool is_surface = pResDesc != nullptr && pResDesc->resType == CU_RESOURCE_TYPE_ARRAY && is_resource(*pResDesc);
    if (pSurfObject == nullptr || !is_surface) return CUDA_ERROR_INVALID_VALUE;
    *pSurfObject = surfaces.take();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject surfObject) {
  return entry(Needs::context, [&] {
    (void)surfaces.give_back(surfObject);  // of none it is no error
    return CUDA_SUCCESS;
  });
}
