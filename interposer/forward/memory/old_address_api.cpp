// SPDX-License-Identifier: Apache-2.0
// The ABI of CUDA 3.1 and older where it gives device addresses, which have 32 bits there. Each call is today's; an address or a size that does not
// fit is never given in part. (Those that take addresses are today's calls with wider arguments: `same_as` in proto/spec.)
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "gen/api_declarations.hpp"

namespace mpsshim::interposer::api {

namespace {

struct Given {
  unsigned int* to;  // null: not asked for
  std::uint64_t value;

  [[nodiscard]] bool fits() const { return to == nullptr || value <= std::numeric_limits<unsigned int>::max(); }
};

// All of them or, with CUDA_ERROR_NOT_SUPPORTED, none.
CUresult give(CUresult error, std::initializer_list<Given> results) {
  if (error != CUDA_SUCCESS) return error;
  if (!std::ranges::all_of(results, &Given::fits)) return CUDA_ERROR_NOT_SUPPORTED;
  for (const Given& result : results) {
    if (result.to != nullptr) *result.to = static_cast<unsigned int>(result.value);
  }
  return CUDA_SUCCESS;
}

// Memory that has just been made. Where its address does not fit, there is none left that would.
CUresult give_memory(CUresult error, CUdeviceptr address, std::initializer_list<Given> results) {
  if (error != CUDA_SUCCESS || give(error, results) == CUDA_SUCCESS) return error;
  const CUresult freed = api::cuMemFree_v2(address);
  return freed == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : freed;
}

}  // namespace

CUresult cuMemAlloc(CUdeviceptr_v1* dptr, unsigned int bytesize) {
  CUdeviceptr address = 0;
  const CUresult error = api::cuMemAlloc_v2(dptr != nullptr ? &address : nullptr, bytesize);
  return give_memory(error, address, {{dptr, address}});
}

CUresult cuMemAllocPitch(CUdeviceptr_v1* dptr, unsigned int* pPitch, unsigned int WidthInBytes, unsigned int Height, unsigned int ElementSizeBytes) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  const CUresult error =
      api::cuMemAllocPitch_v2(dptr != nullptr ? &address : nullptr, pPitch != nullptr ? &pitch : nullptr, WidthInBytes, Height, ElementSizeBytes);
  return give_memory(error, address, {{dptr, address}, {pPitch, pitch}});
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1* pbase, unsigned int* psize, CUdeviceptr_v1 dptr) {
  CUdeviceptr base = 0;
  size_t size = 0;
  const CUresult error = api::cuMemGetAddressRange_v2(&base, &size, dptr);
  return give(error, {{pbase, base}, {psize, size}});
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1* pdptr, void* p, unsigned int Flags) {
  CUdeviceptr address = 0;
  const CUresult error = api::cuMemHostGetDevicePointer_v2(pdptr != nullptr ? &address : nullptr, p, Flags);
  return give(error, {{pdptr, address}});
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1* dptr, unsigned int* bytes, CUmodule hmod, const char* name) {
  CUdeviceptr address = 0;
  size_t size = 0;
  const CUresult error = api::cuModuleGetGlobal_v2(dptr != nullptr ? &address : nullptr, bytes != nullptr ? &size : nullptr, hmod, name);
  return give(error, {{dptr, address}, {bytes, size}});
}

CUresult cuTexRefGetAddress(CUdeviceptr_v1* pdptr, CUtexref hTexRef) {
  CUdeviceptr address = 0;
  const CUresult error = api::cuTexRefGetAddress_v2(pdptr != nullptr ? &address : nullptr, hTexRef);
  return give(error, {{pdptr, address}});
}

CUresult cuTexRefSetAddress(unsigned int* ByteOffset, CUtexref hTexRef, CUdeviceptr_v1 dptr, unsigned int bytes) {
  size_t offset_bytes = 0;
  const CUresult error = api::cuTexRefSetAddress_v2(ByteOffset != nullptr ? &offset_bytes : nullptr, hTexRef, dptr, bytes);
  return give(error, {{ByteOffset, offset_bytes}});
}

CUresult cuTexRefSetAddress2D(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR_v1* desc, CUdeviceptr_v1 dptr, unsigned int Pitch) {
  if (desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY_DESCRIPTOR wide{desc->Width, desc->Height, desc->Format, desc->NumChannels};
  return api::cuTexRefSetAddress2D_v3(hTexRef, &wide, dptr, Pitch);
}

}  // namespace mpsshim::interposer::api
