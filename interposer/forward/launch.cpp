// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/launch.hpp"

#include <array>
#include <cstring>

namespace mpsshim::interposer::forward {

CUresult check_launch(const LaunchShape& shape, const LaunchLimits& limits, std::int32_t function_threads,
                      std::int32_t function_dynamic_shared_bytes) {
  // One unsigned comparison each: 0 wraps around and is out of range, too.
  const bool in_range = shape.grid_x - 1 < limits.grid_x && shape.grid_y - 1 < limits.grid_y && shape.grid_z - 1 < limits.grid_z &&
                        shape.block_x - 1 < limits.block_x && shape.block_y - 1 < limits.block_y && shape.block_z - 1 < limits.block_z;
  if (!in_range) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t threads = static_cast<std::uint64_t>(shape.block_x) * shape.block_y * shape.block_z;
  if (threads > limits.threads) return CUDA_ERROR_INVALID_VALUE;
  if (threads > static_cast<std::uint32_t>(function_threads)) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (shape.shared_bytes > static_cast<std::uint32_t>(function_dynamic_shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult check_cluster(const Function& function, const LaunchShape& shape, std::span<const CUlaunchAttribute> attributes) {
  const auto value_of = [&](CUfunction_attribute id) {
    return static_cast<std::uint32_t>(function.attribute[static_cast<std::size_t>(id)].load(std::memory_order_relaxed));
  };
  const std::array required{value_of(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH), value_of(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT),
                            value_of(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH)};
  std::array<std::uint32_t, 3> cluster{1, 1, 1};
  if (function.has_compiled_cluster) {
    cluster = required;
  } else {
    for (const CUlaunchAttribute& attribute : attributes) {
      if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
      cluster = {attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z};
      if (required[0] != 0 && cluster != required) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
  }
  const bool is_large_allowed = value_of(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0;
  const std::uint32_t most = is_large_allowed ? kMostBlocksOfCluster : kMostPortableBlocksOfCluster;
  std::uint64_t blocks = 1;
  for (const std::uint32_t size : cluster) {
    if (size == 0 || size > most) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    blocks *= size;
  }
  const bool is_multiple = shape.grid_x % cluster[0] == 0 && shape.grid_y % cluster[1] == 0 && shape.grid_z % cluster[2] == 0;
  return blocks <= most && is_multiple ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

CUresult find_arguments(void** kernel_params, void** extra, std::uint32_t parameter_bytes, Arguments& arguments) {
  if (extra == nullptr) {
    if (kernel_params == nullptr && parameter_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    arguments.pointers = kernel_params;
    return CUDA_SUCCESS;
  }
  if (kernel_params != nullptr) return CUDA_ERROR_INVALID_VALUE;
  const void* buffer = nullptr;
  std::size_t size_bytes = 0;
  for (void** entry = extra; *entry != CU_LAUNCH_PARAM_END; entry += 2) {
    switch (reinterpret_cast<std::uintptr_t>(*entry)) {
      case CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT: buffer = entry[1]; break;
      case CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT: size_bytes = *static_cast<const std::size_t*>(entry[1]); break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (parameter_bytes != 0 && (buffer == nullptr || size_bytes == 0)) return CUDA_ERROR_INVALID_VALUE;
  // Measured: one byte too many, be it padding, is refused; too few are taken, and what is missing has no defined value (here: 0).
  if (size_bytes > parameter_bytes) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  arguments.buffer = static_cast<const std::byte*>(buffer);
  arguments.buffer_bytes = static_cast<std::uint32_t>(size_bytes);
  return CUDA_SUCCESS;
}

void copy_arguments(const Arguments& arguments, std::span<const Parameter> layout, std::uint32_t parameter_bytes, std::byte* buffer) {
  if (arguments.buffer != nullptr) {
    std::memcpy(buffer, arguments.buffer, arguments.buffer_bytes);
    std::memset(buffer + arguments.buffer_bytes, 0, parameter_bytes - arguments.buffer_bytes);
    return;
  }
  for (std::size_t i = 0; i < layout.size(); ++i) {
    // Nearly every parameter is a pointer or an int: copies of known size are one instruction each.
    std::byte* to = buffer + layout[i].offset;
    const void* from = arguments.pointers[i];
    switch (layout[i].size) {
      case 8: std::memcpy(to, from, 8); break;
      case 4: std::memcpy(to, from, 4); break;
      default: std::memcpy(to, from, layout[i].size); break;
    }
  }
}

}  // namespace mpsshim::interposer::forward
