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
  if (address != 0 && backing == nullptr) free_device(address, MemoryKind::device);
}

CUresult Array::check(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  const bool is_shape = descriptor.Width != 0 && descriptor.Width <= kMaxExtent && descriptor.Height <= kMaxExtent &&
                        descriptor.Depth <= kMaxExtent && (descriptor.NumChannels == 1 || descriptor.NumChannels == 2 || descriptor.NumChannels == 4);
  return is_shape && channel_bytes(descriptor.Format) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Array::create(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, std::shared_ptr<Array>& array) {
  if (const CUresult checked = check(descriptor); checked != CUDA_SUCCESS) return checked;
  auto made = lay_out(descriptor);
  const CUresult result = allocate_device(made->size_bytes(), MemoryKind::device, made->address);
  if (result == CUDA_SUCCESS) array = std::move(made);
  return result;
}

std::shared_ptr<Array> Array::lay_out(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  auto made = std::make_shared<Array>();
  made->descriptor = descriptor;
  made->row_bytes = descriptor.Width * channel_bytes(descriptor.Format) * descriptor.NumChannels;
  made->rows = std::max<std::size_t>(descriptor.Height, 1);
  made->slices = std::max<std::size_t>(descriptor.Depth, 1);
  return made;
}

CUDA_ARRAY3D_DESCRIPTOR half_of(const CUDA_ARRAY3D_DESCRIPTOR& level) {
  const auto halved = [](std::size_t extent) { return extent > 1 ? extent / 2 : extent; };
  CUDA_ARRAY3D_DESCRIPTOR half = level;
  half.Width = halved(level.Width);
  half.Height = halved(level.Height);
  if ((level.Flags & CUDA_ARRAY3D_LAYERED) == 0) half.Depth = halved(level.Depth);
  return half;
}

}  // namespace mpsshim::cpudriver
