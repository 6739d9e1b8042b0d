// SPDX-License-Identifier: Apache-2.0
//
// Structures that kernels and the device runtime exchange, laid out as the CUDA runtime has them.
#pragma once

#include <cstdint>

#include "broker/cpudriver/ptx/device_runtime.hpp"

namespace mpsshim::ptx {

// cudaFuncAttributes (CUDA Runtime API manual, "Data types used by CUDA Runtime").
struct FunctionAttributes {
  std::uint64_t shared_size_bytes = 0;
  std::uint64_t const_size_bytes = 0;
  std::uint64_t local_size_bytes = 0;
  std::int32_t max_threads_per_block = 0;
  std::int32_t registers = 0;
  std::int32_t ptx_version = 0;
  std::int32_t binary_version = 0;
  std::int32_t cache_mode = 0;
  std::int32_t max_dynamic_shared_bytes = 0;
  std::int32_t preferred_carveout = -1;
  std::int32_t of_clusters[6] = {};
  std::int32_t reserved[16] = {};
};

// cudaPitchedPtr, cudaPos, cudaExtent, cudaMemcpy3DParms
struct PitchedPointer {
  std::uint64_t address = 0;
  std::uint64_t pitch = 0;
  std::uint64_t width = 0;
  std::uint64_t height = 0;
};
struct Copy3d {
  std::uint64_t source_array = 0;
  std::uint64_t source_position[3] = {};
  PitchedPointer source;
  std::uint64_t destination_array = 0;
  std::uint64_t destination_position[3] = {};
  PitchedPointer destination;
  std::uint64_t extent[3] = {};
  std::uint32_t kind = 0;
  std::uint32_t padding = 0;
};
static_assert(sizeof(Copy3d) == 160);

inline BoxRequest::Place place_of(const PitchedPointer& pointer, const std::uint64_t (&position)[3]) {
  const std::uint64_t slice = pointer.pitch * pointer.height;
  return {pointer.address + position[0] + position[1] * pointer.pitch + position[2] * slice, pointer.pitch, slice};
}

}  // namespace mpsshim::ptx
