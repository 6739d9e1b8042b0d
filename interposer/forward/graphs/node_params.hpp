// SPDX-License-Identifier: Apache-2.0
// The versions of kernel node parameters, to and from the newest one.
#pragma once

#include "interposer/forward/graphs/node_work.hpp"

namespace mpsshim::interposer::forward {

[[nodiscard]] inline CUDA_KERNEL_NODE_PARAMS_v3 kernel_params(const CUDA_KERNEL_NODE_PARAMS_v1& p) {
  return {p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
          p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    nullptr,     nullptr};
}
[[nodiscard]] inline CUDA_KERNEL_NODE_PARAMS_v3 kernel_params(const CUDA_KERNEL_NODE_PARAMS& p) {
  return {p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
          p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    p.kern,      p.ctx};
}

// What all versions have. The addresses are the node's: they hold until it is changed or ends.
template <typename Params>
void answer(const KernelWork& kernel, Params& params) {
  params = {};
  params.func = kernel.function;
  params.gridDimX = kernel.launch.grid_x;
  params.gridDimY = kernel.launch.grid_y;
  params.gridDimZ = kernel.launch.grid_z;
  params.blockDimX = kernel.launch.block_x;
  params.blockDimY = kernel.launch.block_y;
  params.blockDimZ = kernel.launch.block_z;
  params.sharedMemBytes = kernel.launch.shared_bytes;
  params.kernelParams = kernel.addresses.empty() ? nullptr : const_cast<void**>(kernel.addresses.data());
}

}  // namespace mpsshim::interposer::forward
