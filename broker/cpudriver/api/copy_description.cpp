// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/api/copy_description.hpp"

#include "broker/cpudriver/handle_table.hpp"
#include "broker/cpudriver/memory/array.hpp"
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
    return false;
  }
  place.row_pitch = pitch;
  return true;
}

// The same copy with linear memory in an array's place. Height and Depth are those of the copy's box, for the bounds.
CUresult replace_array(CUmemorytype& type, CUarray handle, CUdeviceptr& address, std::size_t& pitch, std::size_t& rows, const std::size_t (&end)[3]) {
  if (type != CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
  const auto array = HandleTable<Array>::get().find(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (end[0] > array->row_bytes || end[1] > array->rows || end[2] > array->slices) return CUDA_ERROR_INVALID_VALUE;
  type = CU_MEMORYTYPE_DEVICE;
  address = array->address;
  pitch = array->row_bytes;
  rows = array->rows;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult read_copy(const CUDA_MEMCPY2D* description, Copy& copy) {
  if (description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY2D d = *description;
  std::size_t rows = 0;
  CUresult found = replace_array(d.srcMemoryType, d.srcArray, d.srcDevice, d.srcPitch, rows, {d.srcXInBytes + d.WidthInBytes, d.srcY + d.Height, 1});
  if (found == CUDA_SUCCESS) {
    found = replace_array(d.dstMemoryType, d.dstArray, d.dstDevice, d.dstPitch, rows, {d.dstXInBytes + d.WidthInBytes, d.dstY + d.Height, 1});
  }
  if (found != CUDA_SUCCESS) return found;
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
  CUDA_MEMCPY3D d = *description;
  CUresult found = replace_array(d.srcMemoryType, d.srcArray, d.srcDevice, d.srcPitch, d.srcHeight,
                                 {d.srcXInBytes + d.WidthInBytes, d.srcY + d.Height, d.srcZ + d.Depth});
  if (found == CUDA_SUCCESS) {
    found = replace_array(d.dstMemoryType, d.dstArray, d.dstDevice, d.dstPitch, d.dstHeight,
                          {d.dstXInBytes + d.WidthInBytes, d.dstY + d.Height, d.dstZ + d.Depth});
  }
  if (found != CUDA_SUCCESS) return found;
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
