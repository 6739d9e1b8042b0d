// SPDX-License-Identifier: Apache-2.0
// A kernel launch as the driver checks it, then one record: function, grid, arguments copied by the function's layout, attributes behind.
// The path of one launch: no allocation, no system call, no lock but the channel's. What cannot be checked here fails in the executor
// and comes back as the asynchronous error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gen/cuda_api.hpp"
#include "interposer/forward/functions.hpp"

namespace mpsshim::interposer::forward {

// Blocks of a cluster on every device that has clusters; on some, where the function allows it (H200: measured).
inline constexpr std::uint32_t kMostPortableBlocksOfCluster = 8;
inline constexpr std::uint32_t kMostBlocksOfCluster = 16;

struct LaunchShape {
  std::uint32_t grid_x, grid_y, grid_z;
  std::uint32_t block_x, block_y, block_z;
  std::uint32_t shared_bytes;
};

[[nodiscard]] inline proto::LaunchRecord launch_record(const Function& function, const LaunchShape& shape, std::size_t attribute_count,
                                                       proto::Flags<proto::LaunchFlag> flags) {
  return {function.id,
          shape.grid_x,
          shape.grid_y,
          shape.grid_z,
          shape.block_x,
          shape.block_y,
          shape.block_z,
          shape.shared_bytes,
          function.parameter_bytes,
          static_cast<std::uint32_t>(attribute_count),
          flags};
}

// The device's limits on a launch, read once.
struct LaunchLimits {
  std::uint32_t grid_x, grid_y, grid_z;
  std::uint32_t block_x, block_y, block_z;
  std::uint32_t threads;
};

// Those of the session's device. In launch_api.cpp.
[[nodiscard]] const LaunchLimits& launch_limits();

// CUDA_ERROR_INVALID_VALUE where no kernel could be launched so, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES where this one cannot.
[[nodiscard]] CUresult check_launch(const LaunchShape& shape, const LaunchLimits& limits, std::int32_t function_threads,
                                    std::int32_t function_dynamic_shared_bytes);

// CUDA_ERROR_INVALID_CLUSTER_SIZE as the driver: more blocks than the function may have in a cluster, a grid that is no multiple of it, or another
// cluster than was set on the function.
[[nodiscard]] CUresult check_cluster(const Function& function, const LaunchShape& shape, std::span<const CUlaunchAttribute> attributes);

// Where a launch's arguments come from: an array of pointers, or a ready buffer. Resolved from kernelParams and extra.
struct Arguments {
  void* const* pointers = nullptr;
  const std::byte* buffer = nullptr;
  std::uint32_t buffer_bytes = 0;  // at most the function's parameter_bytes
};

// CUDA_ERROR_INVALID_VALUE where the two contradict each other or the buffer is empty, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES where it is too long.
[[nodiscard]] CUresult find_arguments(void** kernel_params, void** extra, std::uint32_t parameter_bytes, Arguments& arguments);

// Writes a parameter buffer of `parameter_bytes`. Bytes between parameters are left as they are.
void copy_arguments(const Arguments& arguments, std::span<const Parameter> layout, std::uint32_t parameter_bytes, std::byte* buffer);

}  // namespace mpsshim::interposer::forward
