// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/api/copy_description.hpp"

#include "broker/cpudriver/memory/memory_map.hpp"

namespace mpsshim::cpudriver {
namespace {

bool place_of(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t pitch, BoxPlace& place) {
  if (type == CU_MEMORYTYPE_HOST) {
    place.address = reinterpret_cast<std::uint64_t>(host);
    place.is_device = MemoryMap::get().containing(place.address).has_value();
  } else if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED) {
    place.address = device;
    place.is_device = type == CU_MEMORYTYPE_DEVICE || MemoryMap::get().containing(device).has_value();
  } else {
    return false;  // arrays do not exist here
  }
  place.row_pitch = pitch;
  return true;
}

}  // namespace

CUresult read_copy(const CUDA_MEMCPY2D* description, Copy& copy) {
  if (description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY2D& d = *description;
  copy.box = {.width = d.WidthInBytes, .height = d.Height};
  const std::size_t source_pitch = d.srcPitch == 0 ? d.WidthInBytes + d.srcXInBytes : d.srcPitch;
  const std::size_t destination_pitch = d.dstPitch == 0 ? d.WidthInBytes + d.dstXInBytes : d.dstPitch;
  if (!place_of(d.srcMemoryType, d.srcHost, d.srcDevice, source_pitch, copy.source) ||
      !place_of(d.dstMemoryType, d.dstHost, d.dstDevice, destination_pitch, copy.destination)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const bool rows_fit = d.srcXInBytes + d.WidthInBytes <= source_pitch && d.dstXInBytes + d.WidthInBytes <= destination_pitch;
  if (!rows_fit) return CUDA_ERROR_INVALID_VALUE;
  copy.source.address += d.srcY * source_pitch + d.srcXInBytes;
  copy.destination.address += d.dstY * destination_pitch + d.dstXInBytes;
  return CUDA_SUCCESS;
}

CUresult read_copy(const CUDA_MEMCPY3D* description, Copy& copy) {
  if (description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY3D& d = *description;
  if (d.srcLOD != 0 || d.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  copy.box = {.width = d.WidthInBytes, .height = d.Height, .depth = d.Depth};
  const std::size_t source_pitch = d.srcPitch == 0 ? d.WidthInBytes + d.srcXInBytes : d.srcPitch;
  const std::size_t destination_pitch = d.dstPitch == 0 ? d.WidthInBytes + d.dstXInBytes : d.dstPitch;
  if (!place_of(d.srcMemoryType, d.srcHost, d.srcDevice, source_pitch, copy.source) ||
      !place_of(d.dstMemoryType, d.dstHost, d.dstDevice, destination_pitch, copy.destination)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const std::size_t source_rows = d.srcHeight == 0 ? d.Height + d.srcY : d.srcHeight;
  const std::size_t destination_rows = d.dstHeight == 0 ? d.Height + d.dstY : d.dstHeight;
  const bool fits = d.srcXInBytes + d.WidthInBytes <= source_pitch && d.srcY + d.Height <= source_rows &&
                    d.dstXInBytes + d.WidthInBytes <= destination_pitch && d.dstY + d.Height <= destination_rows;
  if (!fits) return CUDA_ERROR_INVALID_VALUE;
  copy.source.slice_pitch = source_pitch * source_rows;
  copy.destination.slice_pitch = destination_pitch * destination_rows;
  copy.source.address += d.srcZ * copy.source.slice_pitch + d.srcY * source_pitch + d.srcXInBytes;
  copy.destination.address +=
      d.dstZ * copy.destination.slice_pitch + d.dstY * destination_pitch + d.dstXInBytes;
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::cpudriver
