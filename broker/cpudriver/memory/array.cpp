// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/memory/array.hpp"

#include <algorithm>

#include "broker/cpudriver/memory/allocations.hpp"

namespace mpsshim::cpudriver {
namespace {

constexpr std::size_t kMaxExtent = 131'072;  // what the device's attributes say of 1D and 2D textures

std::size_t channel_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
  }
}

}  // namespace

Array::~Array() {
  if (address != 0) free_device(address, MemoryKind::device);
}

CUresult Array::check(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  const bool is_shape = descriptor.Width != 0 && descriptor.Width <= kMaxExtent && descriptor.Height <= kMaxExtent &&
                        descriptor.Depth <= kMaxExtent && (descriptor.NumChannels == 1 || descriptor.NumChannels == 2 || descriptor.NumChannels == 4);
  return is_shape && channel_bytes(descriptor.Format) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Array::create(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, std::shared_ptr<Array>& array) {
  if (const CUresult checked = check(descriptor); checked != CUDA_SUCCESS) return checked;
  auto made = std::make_shared<Array>();
  made->descriptor = descriptor;
  made->row_bytes = descriptor.Width * channel_bytes(descriptor.Format) * descriptor.NumChannels;
  made->rows = std::max<std::size_t>(descriptor.Height, 1);
  made->slices = std::max<std::size_t>(descriptor.Depth, 1);
  const CUresult result = allocate_device(made->row_bytes * made->rows * made->slices, MemoryKind::device, made->address);
  if (result == CUDA_SUCCESS) array = std::move(made);
  return result;
}

}  // namespace mpsshim::cpudriver
