// SPDX-License-Identifier: Apache-2.0
//
// An array: rows one behind the other in device memory of its own, without padding. Nothing samples it, since the engine has no
// texture instructions; copies see it as linear memory. A level of a mipmapped array keeps that alive.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace mpsshim::cpudriver {

// Memory that lies behind an array and that it keeps: none where it is device memory of the array's own.
using ArrayBacking = std::shared_ptr<const void>;

struct Array {
  Array() = default;
  Array(const Array&) = delete;
  ~Array();

  // CUDA_ERROR_INVALID_VALUE: a description that is none. Formats without elements are not supported.
  static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR& descriptor);
  static CUresult create(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, std::shared_ptr<Array>& array);
  // Without memory yet.
  static std::shared_ptr<Array> lay_out(const CUDA_ARRAY3D_DESCRIPTOR& descriptor);
  std::size_t size_bytes() const { return row_bytes * rows * slices; }

  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  std::uint64_t address = 0;
  std::size_t row_bytes = 0;
  std::size_t rows = 0;
  std::size_t slices = 0;
  ArrayBacking backing;
};

// The next level of a mipmapped array.
CUDA_ARRAY3D_DESCRIPTOR half_of(const CUDA_ARRAY3D_DESCRIPTOR& level);

struct MipmappedArray {
  std::vector<std::shared_ptr<Array>> levels;
};

}  // namespace mpsshim::cpudriver
