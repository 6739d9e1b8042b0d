// SPDX-License-Identifier: Apache-2.0
// Copies with an array at one end or both. The linear end, if there is one, may be device memory, pinned memory or pageable memory; the last
// goes through pinned memory of the library's own, piece by piece, and is done when the call returns, in asynchronous functions as well.
#pragma once

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/copy.hpp"
#include "interposer/forward/streams.hpp"

namespace mpsshim::interposer::forward {

[[nodiscard]] inline bool names_array(const CUDA_MEMCPY3D& copy) {
  return copy.srcMemoryType == CU_MEMORYTYPE_ARRAY || copy.dstMemoryType == CU_MEMORYTYPE_ARRAY;
}

// Of a description that names an array: as cuMemcpy3D and cuMemcpy3DAsync.
[[nodiscard]] CUresult copy_with_array(Stream& stream, const CUDA_MEMCPY3D& copy, Completion completion);

}  // namespace mpsshim::interposer::forward
