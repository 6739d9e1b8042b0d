// SPDX-License-Identifier: Apache-2.0
// The ABI of CUDA 3.1 and older, for what gives no device address (old_address_api.cpp does): sizes are 32 bits wide.
// Descriptions of copies are widened and checked as those of today.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "gen/api_declarations.hpp"

namespace mpsshim::interposer::api {

namespace {

unsigned int clamped(size_t bytes) {
  constexpr size_t kMost = std::numeric_limits<unsigned int>::max();
  return static_cast<unsigned int>(std::min(bytes, kMost));
}

CUDA_MEMCPY2D widened(const CUDA_MEMCPY2D_v1& copy) {
  CUDA_MEMCPY2D wide{};
  wide.srcXInBytes = copy.srcXInBytes;
  wide.srcY = copy.srcY;
  wide.srcMemoryType = copy.srcMemoryType;
  wide.srcHost = copy.srcHost;
  wide.srcDevice = copy.srcDevice;
  wide.srcArray = copy.srcArray;
  wide.srcPitch = copy.srcPitch;
  wide.dstXInBytes = copy.dstXInBytes;
  wide.dstY = copy.dstY;
  wide.dstMemoryType = copy.dstMemoryType;
  wide.dstHost = copy.dstHost;
  wide.dstDevice = copy.dstDevice;
  wide.dstArray = copy.dstArray;
  wide.dstPitch = copy.dstPitch;
  wide.WidthInBytes = copy.WidthInBytes;
  wide.Height = copy.Height;
  return wide;
}

CUDA_MEMCPY3D widened(const CUDA_MEMCPY3D_v1& copy) {
  CUDA_MEMCPY3D wide{};
  wide.srcXInBytes = copy.srcXInBytes;
  wide.srcY = copy.srcY;
  wide.srcZ = copy.srcZ;
  wide.srcLOD = copy.srcLOD;
  wide.srcMemoryType = copy.srcMemoryType;
  wide.srcHost = copy.srcHost;
  wide.srcDevice = copy.srcDevice;
  wide.srcArray = copy.srcArray;
  wide.srcPitch = copy.srcPitch;
  wide.srcHeight = copy.srcHeight;
  wide.dstXInBytes = copy.dstXInBytes;
  wide.dstY = copy.dstY;
  wide.dstZ = copy.dstZ;
  wide.dstLOD = copy.dstLOD;
  wide.dstMemoryType = copy.dstMemoryType;
  wide.dstHost = copy.dstHost;
  wide.dstDevice = copy.dstDevice;
  wide.dstArray = copy.dstArray;
  wide.dstPitch = copy.dstPitch;
  wide.dstHeight = copy.dstHeight;
  wide.WidthInBytes = copy.WidthInBytes;
  wide.Height = copy.Height;
  wide.Depth = copy.Depth;
  return wide;
}

template <typename Description, typename F>
CUresult with_wide(const Description* copy, F&& f) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto wide = widened(*copy);
  return f(&wide);
}

}  // namespace

CUresult cuMemAllocHost(void** pp, unsigned int bytesize) { return api::cuMemAllocHost_v2(pp, bytesize); }

CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (const CUresult error = api::cuMemGetInfo_v2(&free_bytes, &total_bytes); error != CUDA_SUCCESS) return error;
  if (free != nullptr) *free = clamped(free_bytes);
  if (total != nullptr) *total = clamped(total_bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1* pCopy) {
  return with_wide(pCopy, [](const CUDA_MEMCPY2D* wide) { return api::cuMemcpy2D_v2(wide); });
}
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1* pCopy) {
  return with_wide(pCopy, [](const CUDA_MEMCPY2D* wide) { return api::cuMemcpy2DUnaligned_v2(wide); });
}
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1* pCopy, CUstream hStream) {
  return with_wide(pCopy, [hStream](const CUDA_MEMCPY2D* wide) { return api::cuMemcpy2DAsync_v2(wide, hStream); });
}
CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1* pCopy) {
  return with_wide(pCopy, [](const CUDA_MEMCPY3D* wide) { return api::cuMemcpy3D_v2(wide); });
}
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1* pCopy, CUstream hStream) {
  return with_wide(pCopy, [hStream](const CUDA_MEMCPY3D* wide) { return api::cuMemcpy3DAsync_v2(wide, hStream); });
}

}  // namespace mpsshim::interposer::api
