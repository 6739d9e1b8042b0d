// SPDX-License-Identifier: Apache-2.0
// Primary context management (CUDA Driver API manual, "Primary Context Management").
#include "gen/api_declarations.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return retain_primary_context(dev, *pctx);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return release_primary_context(dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return reset_primary_context(dev);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto context = find_context(primary_context(dev));
  *flags = context->flags.load(std::memory_order_relaxed);
  *active = context->retain_count.load(std::memory_order_acquire) != 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (!valid_context_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  find_context(primary_context(dev))->flags.store(flags, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
