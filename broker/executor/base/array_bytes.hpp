// SPDX-License-Identifier: Apache-2.0
// How much memory arrays hold, as far as their description says it. Numbers come from clients: nothing overflows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include <cuda.h>

namespace mpsshim::broker {

// Of one element; 0: the driver knows its blocks.
inline std::uint64_t element_bytes_of(std::uint32_t format, std::uint32_t channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return std::uint64_t{2} * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return std::uint64_t{4} * channels;
    default: return 0;
  }
}

// What an array with so many levels holds, each element of formats whose blocks the driver alone knows taken for `block_bytes`. False: more than
// there are addresses.
inline bool array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels, std::uint64_t block_bytes, std::uint64_t& bytes) {
  std::uint64_t extent[] = {array.Width, array.Height, array.Depth};
  const std::size_t halved = (array.Flags & CUDA_ARRAY3D_LAYERED) != 0 ? 2 : 3;  // extents; layers stay as many
  const std::uint64_t element = element_bytes_of(array.Format, array.NumChannels);
  bytes = 0;
  for (bool is_smallest = false; levels > 0 && !is_smallest; --levels) {
    std::uint64_t level = element != 0 ? element : block_bytes;
    is_smallest = true;
    for (std::size_t i = 0; i < std::size(extent); ++i) {
      if (__builtin_mul_overflow(level, std::max<std::uint64_t>(extent[i], 1), &level)) return false;
      if (i < halved && extent[i] > 1) is_smallest = false;
      if (i < halved) extent[i] /= 2;
    }
    if (__builtin_add_overflow(bytes, level, &bytes)) return false;
  }
  return true;
}

}  // namespace mpsshim::broker
