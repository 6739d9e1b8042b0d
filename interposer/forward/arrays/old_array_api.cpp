// SPDX-License-Identifier: Apache-2.0
// The ABI of CUDA 3.1 and older, as far as it names no device pointer, which would have to fit 32 bits: sizes are 32 bits wide.
#include "gen/api_declarations.hpp"

namespace mpsshim::interposer::api {

CUresult cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR_v1* pAllocateArray) {
  if (pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY_DESCRIPTOR wide{pAllocateArray->Width, pAllocateArray->Height, pAllocateArray->Format, pAllocateArray->NumChannels};
  return api::cuArrayCreate_v2(pHandle, &wide);
}

CUresult cuArray3DCreate(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1* pAllocateArray) {
  if (pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR wide{pAllocateArray->Width,  pAllocateArray->Height,      pAllocateArray->Depth,
                                     pAllocateArray->Format, pAllocateArray->NumChannels, pAllocateArray->Flags};
  return api::cuArray3DCreate_v2(pHandle, &wide);
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1* pArrayDescriptor, CUarray hArray) {
  if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY_DESCRIPTOR wide{};
  if (const CUresult error = api::cuArrayGetDescriptor_v2(&wide, hArray); error != CUDA_SUCCESS) return error;
  *pArrayDescriptor = {static_cast<unsigned int>(wide.Width), static_cast<unsigned int>(wide.Height), wide.Format, wide.NumChannels};
  return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1* pArrayDescriptor, CUarray hArray) {
  if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR wide{};
  if (const CUresult error = api::cuArray3DGetDescriptor_v2(&wide, hArray); error != CUDA_SUCCESS) return error;
  *pArrayDescriptor = {static_cast<unsigned int>(wide.Width),
                       static_cast<unsigned int>(wide.Height),
                       static_cast<unsigned int>(wide.Depth),
                       wide.Format,
                       wide.NumChannels,
                       wide.Flags};
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoA(CUarray dstArray, unsigned int dstOffset, const void* srcHost, unsigned int ByteCount) {
  return api::cuMemcpyHtoA_v2(dstArray, dstOffset, srcHost, ByteCount);
}
CUresult cuMemcpyAtoH(void* dstHost, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount) {
  return api::cuMemcpyAtoH_v2(dstHost, srcArray, srcOffset, ByteCount);
}
CUresult cuMemcpyAtoA(CUarray dstArray, unsigned int dstOffset, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount) {
  return api::cuMemcpyAtoA_v2(dstArray, dstOffset, srcArray, srcOffset, ByteCount);
}
CUresult cuMemcpyHtoAAsync(CUarray dstArray, unsigned int dstOffset, const void* srcHost, unsigned int ByteCount, CUstream hStream) {
  return api::cuMemcpyHtoAAsync_v2(dstArray, dstOffset, srcHost, ByteCount, hStream);
}
CUresult cuMemcpyAtoHAsync(void* dstHost, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount, CUstream hStream) {
  return api::cuMemcpyAtoHAsync_v2(dstHost, srcArray, srcOffset, ByteCount, hStream);
}

}  // namespace mpsshim::interposer::api
