// SPDX-License-Identifier: Apache-2.0
// Launches by parameter block (CUDA Driver API manual, "Execution Control [DEPRECATED]"): a function's block shape, shared memory and
// parameters are set on it one by one, and a launch uses what was set. All of it is this process's own: each launch is a cuLaunchKernel.
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "gen/api_declarations.hpp"
#include "interposer/forward/functions.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

constexpr std::size_t kBlockBytes = 4096;  // what a kernel's parameters may take at most, where they are set like this

struct ParameterBlock {
  unsigned int block[3] = {1, 1, 1};
  unsigned int shared_bytes = 0;
  std::size_t size_bytes = 0;
  std::array<std::byte, kBlockBytes> bytes{};
};

Mutex& blocks_mutex() {
  static Mutex& mutex = *new Mutex();
  return mutex;
}

// By function id, which is never used again. A copy is taken for a launch.
std::map<std::uint64_t, ParameterBlock>& blocks() {
  static auto& all = *new std::map<std::uint64_t, ParameterBlock>();
  return all;
}

template <typename F>
CUresult with_block(CUfunction handle, F&& f) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const Function* function = Functions::instance().resolve(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(blocks_mutex());
  return f(blocks()[function->id.value]);
}

CUresult set_parameter(CUfunction handle, int offset, const void* value, std::size_t size) {
  if (value == nullptr || offset < 0 || static_cast<std::size_t>(offset) > kBlockBytes || size > kBlockBytes - static_cast<std::size_t>(offset)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with_block(handle, [&](ParameterBlock& block) {
    std::memcpy(block.bytes.data() + offset, value, size);
    return CUDA_SUCCESS;
  });
}

CUresult launch(CUfunction handle, int grid_width, int grid_height, CUstream stream) {
  if (grid_width <= 0 || grid_height <= 0) return CUDA_ERROR_INVALID_VALUE;
  ParameterBlock block;
  const CUresult error = with_block(handle, [&](ParameterBlock& set) {
    block = set;
    return CUDA_SUCCESS;
  });
  if (error != CUDA_SUCCESS) return error;
  std::size_t size = block.size_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block.bytes.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  return api::cuLaunchKernel(handle, static_cast<unsigned int>(grid_width), static_cast<unsigned int>(grid_height), 1, block.block[0], block.block[1],
                             block.block[2], block.shared_bytes, stream, nullptr, extra);
}

}  // namespace

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  return with_block(hfunc, [&](ParameterBlock& block) {
    block.block[0] = static_cast<unsigned int>(x);
    block.block[1] = static_cast<unsigned int>(y);
    block.block[2] = static_cast<unsigned int>(z);
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) {
  return with_block(hfunc, [&](ParameterBlock& block) {
    block.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes) {
  if (numbytes > kBlockBytes) return CUDA_ERROR_INVALID_VALUE;
  return with_block(hfunc, [&](ParameterBlock& block) {
    block.size_bytes = numbytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value) { return set_parameter(hfunc, offset, &value, sizeof value); }
CUresult cuParamSetf(CUfunction hfunc, int offset, float value) { return set_parameter(hfunc, offset, &value, sizeof value); }
CUresult cuParamSetv(CUfunction hfunc, int offset, void* ptr, unsigned int numbytes) { return set_parameter(hfunc, offset, ptr, numbytes); }

CUresult cuLaunch(CUfunction f) { return launch(f, 1, 1, nullptr); }
CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) { return launch(f, grid_width, grid_height, nullptr); }
CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) { return launch(f, grid_width, grid_height, hStream); }

}  // namespace mpsshim::interposer::api
