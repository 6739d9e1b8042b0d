// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Green Contexts". Resources are values; descriptors live for ever, as the manual has no call that ends one.
#include "broker/cpudriver/context/green_context.hpp"

#include <algorithm>
#include <vector>

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/context/context.hpp"
#include "broker/cpudriver/device/sm_resource.hpp"

using namespace mpsshim::cpudriver;

// Not in cuda.h of CUDA 12.4.
extern "C" CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags, int priority);
extern "C" CUresult CUDAAPI cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long* greenCtxId);

namespace {

CUresult answer_share(const SmShare& share, CUdevResource* resource, CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = as_resource(share);
  return CUDA_SUCCESS;
}

template <class Body>
CUresult with_green(CUgreenCtx handle, Body&& body) {
  return entry(Needs::initialised, [&]() -> CUresult {
    const GreenContextPtr green = GreenContext::find(handle);
    return green == nullptr ? CUDA_ERROR_INVALID_CONTEXT : body(green);
  });
}

}  // namespace

CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  return entry(Needs::initialised, [&] {
    if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return answer_share(whole_device(), resource, type);
  });
}

CUresult CUDAAPI cuCtxGetDevResource(CUcontext hCtx, CUdevResource* resource, CUdevResourceType type) {
  return entry(Needs::initialised, [&] {
    if (const GreenContextPtr green = GreenContext::find(hCtx)) return answer_share(green->share(), resource, type);
    if (!Context::primary().is_mine(hCtx)) return CUDA_ERROR_INVALID_CONTEXT;
    return answer_share(whole_device(), resource, type);
  });
}

CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource* resource, CUdevResourceType type) {
  return with_green(hCtx, [&](const GreenContextPtr& green) { return answer_share(green->share(), resource, type); });
}

CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource* result, unsigned int* nbGroups, const CUdevResource* input, CUdevResource* remaining,
                                             unsigned int useFlags, unsigned int minCount) {
  return entry(Needs::initialised, [&] {
    if (nbGroups == nullptr || input == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (result != nullptr && *nbGroups == 0) return CUDA_ERROR_INVALID_VALUE;
    const std::optional<SmShare> share = share_of(*input);
    if (!share) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    SmSplit plan;
    if (const CUresult error = plan_split(*share, useFlags, minCount, plan); error != CUDA_SUCCESS) return error;
    if (result == nullptr) {
      *nbGroups = plan.groups;
      return CUDA_SUCCESS;
    }
    *nbGroups = std::min(*nbGroups, plan.groups);
    const SmShare left = split(*share, plan, std::span(result, *nbGroups));
    if (remaining != nullptr) *remaining = as_resource(left);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc* phDesc, CUdevResource* resources, unsigned int nbResources) {
  return entry(Needs::initialised, [&] {
    if (phDesc == nullptr || resources == nullptr || nbResources == 0) return CUDA_ERROR_INVALID_VALUE;
    std::vector<SmShare> shares;
    for (const CUdevResource& resource : std::span(resources, nbResources)) {
      const std::optional<SmShare> share = share_of(resource);
      if (!share) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
      shares.push_back(*share);
    }
    auto all = std::make_shared<SmShare>();
    if (const CUresult error = combine(shares, *all); error != CUDA_SUCCESS) return error;
    *phDesc = static_cast<CUdevResourceDesc>(HandleTable<SmShare>::get().add(std::move(all)));
    return CUDA_SUCCESS;
  });
}

// Waits for what runs, as on a GPU; others' launches pass.
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  return entry(Needs::initialised, [&] {
    if (phCtx == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    const std::shared_ptr<SmShare> share = HandleTable<SmShare>::get().find(desc);
    if (share == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Scheduler::QuietWindow window(Scheduler::get(), true);
    CUresult error = CUDA_SUCCESS;
    const GreenContextPtr green = GreenContext::make(dev, {share->mask, 0}, error);
    if (green != nullptr) *phCtx = green->handle();
    return error;
  });
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx) {
  return with_green(hCtx, [&](const GreenContextPtr& green) {
    const Scheduler::QuietWindow window(Scheduler::get(), true);
    return GreenContext::destroy(green->handle()) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) {
  return with_green(hCtx, [&](const GreenContextPtr& green) {
    if (pContext == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pContext = green->context();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags, int priority) {
  return with_green(greenCtx, [&](const GreenContextPtr& green) {
    if (phStream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    Scheduler::get().wait_for_windows();
    const int clamped = std::clamp(priority, Context::kGreatestPriority, Context::kLeastPriority);
    auto stream = std::make_shared<Stream>(Stream::Kind::ordinary, flags, clamped, green);
    *phStream = static_cast<CUstream>(HandleTable<Stream>::get().add(std::move(stream)));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) {
  return entry(Needs::context, [&] {
    const StreamPtr stream = stream_of(hStream);
    if (const CUresult refused = usable(stream); refused != CUDA_SUCCESS) return refused;
    if (phCtx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const GreenContextPtr green = stream->green();
    *phCtx = green != nullptr ? green->handle() : nullptr;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long* greenCtxId) {
  return entry(Needs::initialised, [&] {
    if (greenCtxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const GreenContextPtr green = greenCtx != nullptr ? GreenContext::find(greenCtx) : GreenContext::current();
    if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *greenCtxId = green->id();
    return CUDA_SUCCESS;
  });
}
