// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "External Resource Interoperability", memory. Of the types of handles there is one, the opaque descriptor: a memfd.
#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/memory/array.hpp"
#include "broker/cpudriver/memory/external_memory.hpp"

using namespace mpsshim::cpudriver;

namespace {

template <class Body>
CUresult with_memory(CUexternalMemory handle, Body&& body) {
  return entry(Needs::context, [&]() -> CUresult {
    const auto memory = HandleTable<ExternalMemory>::get().find(handle);
    return memory == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*memory);
  });
}

// Levels one behind the other, each as arrays are; `bytes` of them all. False: more than `most`.
bool lay_out_levels(const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC& description, std::uint64_t most, MipmappedArray& mipmapped,
                    std::uint64_t& bytes) {
  CUDA_ARRAY3D_DESCRIPTOR level = description.arrayDesc;
  bytes = 0;
  for (unsigned i = 0; i < description.numLevels; ++i) {
    auto array = Array::lay_out(level);
    if (array->size_bytes() > most - bytes) return false;
    bytes += array->size_bytes();
    mipmapped.levels.push_back(std::move(array));
    level = half_of(level);
  }
  return true;
}

}  // namespace

CUresult CUDAAPI cuImportExternalMemory(CUexternalMemory* extMem_out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* memHandleDesc) {
  return entry(Needs::context, [&]() -> CUresult {
    if (extMem_out == nullptr || memHandleDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (memHandleDesc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
    if ((memHandleDesc->flags & ~unsigned{CUDA_EXTERNAL_MEMORY_DEDICATED}) != 0) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<ExternalMemory> memory;
    const CUresult result = ExternalMemory::import(memHandleDesc->handle.fd, memHandleDesc->size, memory);
    if (result == CUDA_SUCCESS) *extMem_out = static_cast<CUexternalMemory>(HandleTable<ExternalMemory>::get().add(std::move(memory)));
    return result;
  });
}

CUresult CUDAAPI cuExternalMemoryGetMappedBuffer(CUdeviceptr* devPtr, CUexternalMemory extMem, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* bufferDesc) {
  return with_memory(extMem, [&](const ExternalMemory& memory) -> CUresult {
    if (devPtr == nullptr || bufferDesc == nullptr || bufferDesc->flags != 0) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t address = 0;
    const CUresult result = memory.map(bufferDesc->offset, bufferDesc->size, address);
    if (result == CUDA_SUCCESS) *devPtr = address;
    return result;
  });
}

CUresult CUDAAPI cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray* mipmap, CUexternalMemory extMem,
                                                         const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* mipmapDesc) {
  return with_memory(extMem, [&](const ExternalMemory& memory) -> CUresult {
    if (mipmap == nullptr || mipmapDesc == nullptr || mipmapDesc->numLevels == 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult checked = Array::check(mipmapDesc->arrayDesc); checked != CUDA_SUCCESS) return checked;
    if (mipmapDesc->offset > memory.size_bytes()) return CUDA_ERROR_INVALID_VALUE;
    auto mipmapped = std::make_shared<MipmappedArray>();
    std::uint64_t bytes = 0, address = 0;
    if (!lay_out_levels(*mipmapDesc, memory.size_bytes() - mipmapDesc->offset, *mipmapped, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = memory.map(mipmapDesc->offset, bytes, address); result != CUDA_SUCCESS) return result;
    const ArrayBacking backing(reinterpret_cast<const void*>(address), [address](const void*) { (void)ExternalMemory::unmap(address); });
    for (const auto& level : mipmapped->levels) {
      level->address = address;
      level->backing = backing;
      address += level->size_bytes();
      HandleTable<Array>::get().add(level);
    }
    *mipmap = static_cast<CUmipmappedArray>(HandleTable<MipmappedArray>::get().add(std::move(mipmapped)));
    return CUDA_SUCCESS;
  });
}

// What is mapped stays until it is freed.
CUresult CUDAAPI cuDestroyExternalMemory(CUexternalMemory extMem) {
  return entry(Needs::context, [&] {
    const Scheduler::QuietWindow window(Scheduler::get(), false);
    return HandleTable<ExternalMemory>::get().remove(extMem) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}
