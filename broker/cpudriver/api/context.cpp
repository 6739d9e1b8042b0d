// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Primary Context Management", "Context Management". There is one context, the primary.
#include "broker/cpudriver/context/context.hpp"

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/context/green_context.hpp"
#include "broker/cpudriver/device/attributes.hpp"

using namespace mpsshim::cpudriver;

namespace {

// CU_CTX_SCHED_* (0, 1, 2, 4), MAP_HOST, LMEM_RESIZE_TO_MAX, COREDUMP_ENABLE, USER_COREDUMP_ENABLE, SYNC_MEMOPS
constexpr unsigned kKnownFlags = CU_CTX_FLAGS_MASK;

bool is_known(CUcontext context) { return Context::primary().is_mine(context) || GreenContext::find(context) != nullptr; }

}  // namespace

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  return entry(Needs::initialised, [&] {
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    const CUresult retained = Context::primary().retain(dev);
    if (retained == CUDA_SUCCESS) *pctx = Context::primary().handle();
    return retained;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
  return entry(Needs::initialised, [&] {
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    return Devices::get().is_used(dev) && Context::primary().release() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return entry(Needs::initialised, [&] {
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    Context::primary().set_flags(dev, flags);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  return entry(Needs::initialised, [&] {
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (flags != nullptr) *flags = Context::primary().flags(dev);
    if (active != nullptr) *active = Devices::get().is_used(dev) && Context::primary().is_active() ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
  return entry(Needs::initialised, [&] {
    if (ctx != nullptr && !is_known(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    Context::set_current(ctx);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* pctx) {
  return entry(Needs::initialised, [&] {
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pctx = Context::current();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx) {
  return entry(Needs::initialised, [&] {
    if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_known(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    Context::push_current(ctx);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* pctx) {
  return entry(Needs::initialised, [&] {
    CUcontext popped = nullptr;
    if (!Context::pop_current(popped)) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx != nullptr) *pctx = popped;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  return entry(Needs::initialised, [&] {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (Context::current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *device = Devices::get().used();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int* flags) {
  return entry(Needs::context, [&] {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = Context::primary().flags(Devices::get().used());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSetFlags(unsigned int flags) {
  return entry(Needs::context, [&] {
    if ((flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    Context::primary().set_flags(Devices::get().used(), flags);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
  return entry(Needs::initialised, [&] {
    if (ctxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (ctx == nullptr) ctx = Context::current();
    if (!is_known(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    const GreenContextPtr green = GreenContext::find(ctx);
    *ctxId = green != nullptr ? green->id() : Context::kId;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  return entry(Needs::initialised, [&] {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (ctx != nullptr && !is_known(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;  // what every driver since CUDA 3.2 says
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return entry(Needs::context, [] {
    const GreenContextPtr green = GreenContext::current();
    return Scheduler::get().wait_for_everything(green != nullptr ? green->null_stream().get() : nullptr);
  });
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  return entry(Needs::context, [&] {
    if (limit != CU_LIMIT_STACK_SIZE) return Context::primary().set_limit(limit, value);
    // Growing local memory waits for everybody on a GPU.
    const Scheduler::QuietWindow window(Scheduler::get(), false);
    return Context::primary().set_limit(limit, value);
  });
}

CUresult CUDAAPI cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
  return entry(Needs::context, [&] {
    if (pvalue == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return Context::primary().limit(limit, *pvalue);
  });
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
  return entry(Needs::context, [&] {
    if (pconfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pconfig = CU_FUNC_CACHE_PREFER_NONE;  // as on a device where the sizes cannot be changed
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache) {
  return entry(Needs::context, [] { return CUDA_SUCCESS; });  // a preference, without effect where sizes are fixed
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  return entry(Needs::context, [&] {
    if (leastPriority != nullptr) *leastPriority = Context::kLeastPriority;
    if (greatestPriority != nullptr) *greatestPriority = Context::kGreatestPriority;
    return CUDA_SUCCESS;
  });
}
