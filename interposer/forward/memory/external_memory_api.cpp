// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual, "External Resource Interoperability": memory. Semaphores are not offered.
#include "gen/api_declarations.hpp"
#include "interposer/forward/memory/external_memory.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// As the manual numbers them; cuda.h has the last one since CUDA 13.0.
enum HandleType : unsigned { kOpaqueFd = 1, kOpaqueWin32 = 2, kNvSciBuf = 8, kDmaBufFd = 9 };

CUresult check(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC& description) {
  const unsigned type = description.type;
  if (type >= kOpaqueWin32 && type <= kNvSciBuf) return CUDA_ERROR_NOT_SUPPORTED;  // no descriptors, and not on this system
  const unsigned known_flags = type == kOpaqueFd ? unsigned{CUDA_EXTERNAL_MEMORY_DEDICATED} : 0u;
  const bool is_right = (type == kOpaqueFd || type == kDmaBufFd) && description.size != 0 && (description.flags & ~known_flags) == 0;
  return is_right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Memory is bound to such arrays later.
constexpr unsigned int kBoundLater = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;

}  // namespace

CUresult cuImportExternalMemory(CUexternalMemory* extMem_out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* memHandleDesc) {
  if (extMem_out == nullptr || memHandleDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  if (const CUresult error = check(*memHandleDesc); error != CUDA_SUCCESS) return error;
  return ExternalMemories::instance().import(
      {memHandleDesc->handle.fd, static_cast<std::uint32_t>(memHandleDesc->type), memHandleDesc->size, memHandleDesc->flags}, owning_context(),
      *extMem_out);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr* devPtr, CUexternalMemory extMem, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* bufferDesc) {
  if (devPtr == nullptr || bufferDesc == nullptr || bufferDesc->flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  std::uint64_t address = 0;
  const CUresult error = ExternalMemories::instance().map(extMem, bufferDesc->offset, bufferDesc->size, owning_context(), address);
  if (error == CUDA_SUCCESS) *devPtr = address;
  return error;
}

CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray* mipmap, CUexternalMemory extMem,
                                                 const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* mipmapDesc) {
  if (mipmap == nullptr || mipmapDesc == nullptr || mipmapDesc->numLevels == 0) return CUDA_ERROR_INVALID_VALUE;
  if ((mipmapDesc->arrayDesc.Flags & kBoundLater) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  Array* array = nullptr;
  const CUresult error = ExternalMemories::instance().map_array(extMem, *mipmapDesc, owning_context(), array);
  if (error == CUDA_SUCCESS) *mipmap = to_handle<CUmipmappedArray>(array->id);
  return error;
}

CUresult cuDestroyExternalMemory(CUexternalMemory extMem) {
  const CUresult error = begin_with_handle();
  return error == CUDA_SUCCESS ? ExternalMemories::instance().destroy(extMem) : error;
}

}  // namespace mpsshim::interposer::api
