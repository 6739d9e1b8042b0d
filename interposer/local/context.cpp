// SPDX-License-Identifier: Apache-2.0
// Context management (CUDA Driver API manual, "Context Management"). Every context of a process stands for its device's session's one real context.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "gen/api_declarations.hpp"
#include "interposer/entry.hpp"
#include "interposer/environment.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/log.hpp"
#include "interposer/settle.hpp"
#include "proto/provision.hpp"

namespace mpsshim::interposer::api {

namespace {

// The current context's limit, if the device has one of that number.
CUresult check_limit(CUlimit limit, proto::Known<ContextObject>& context) {
  if (const CUresult error = require_context(context); error != CUDA_SUCCESS) return error;
  if (limit < 0 || static_cast<std::uint32_t>(limit) >= proto::kMaxContextLimits) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(device_facts(context->device)->context_limit_status[limit]);
}

// A hint that the driver may ignore; every other limit changes what the real context must provide.
bool is_hint(CUlimit limit) { return limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY; }
constexpr std::size_t kMaxFetchGranularity = 128;

// No more than the device can set aside, and whole sixteenths of its L2 cache: as the driver answers on an H200, whose largest is ten of them (and
// on which a context begins with three). A device's largest is a number of such sixteenths on the others, too.
CUresult set_persisting_cache(ContextObject& context, std::size_t value) {
  constexpr std::size_t kShares = 16;
  const proto::DeviceFacts& facts = *device_facts(context.device);
  int most = 0;
  int cache = 0;
  const CUresult known = device_attribute(facts, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, most);
  if (known != CUDA_SUCCESS || most <= 0) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  const auto largest = static_cast<std::size_t>(most);
  if (value > largest) return CUDA_ERROR_INVALID_VALUE;
  const bool has_cache = device_attribute(facts, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, cache) == CUDA_SUCCESS && cache > 0;
  const std::size_t share = has_cache ? std::max<std::size_t>(static_cast<std::size_t>(cache) / kShares, 1) : 1;
  const std::size_t granted = std::min((value + share - 1) / share * share, largest);
  if (const CUresult error = forward::set_persisting_cache(current_context(), granted); error != CUDA_SUCCESS) return error;
  context.limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE].store(granted, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

// With contexts' own percentages: what the environment says at that moment (NVIDIA's MPS manual, "Client CUDA Context Level"). 0: no limit.
unsigned multiprocessors_for_new_context(const proto::DeviceFacts& facts) {
  if (!environment_switch(Variable::context_percentages) || !driver_has_shares()) return 0;
  const std::optional<std::uint32_t> percentage = proto::parse_percentage(environment_value(Variable::thread_percentage));
  const auto all = static_cast<std::uint32_t>(std::max(facts.attribute[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT], 0));
  if (!percentage) return 0;
  const std::uint32_t allowed = proto::provisioned_multiprocessors(all, facts.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR], *percentage);
  return allowed < all ? allowed : 0;
}

// `wanted`: multiprocessors; 0: all that there may be.
CUresult create(CUcontext* context, unsigned wanted, unsigned flags, CUdevice device) {
  if (context == nullptr || !valid_context_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  const proto::DeviceFacts* facts = device_facts(device);
  if (facts == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const unsigned allowed = multiprocessors_for_new_context(*facts);
  const unsigned granted = wanted == 0 || allowed == 0 ? std::max(wanted, allowed) : std::min(wanted, allowed);
  return granted != 0 ? forward::create_context_with_part(device, flags, granted, *context) : create_context(device, flags, *context);
}

// As NVIDIA's driver beneath its MPS: of several affinities the last one counts, fewer than none are none, and a number of multiprocessors that the
// device does not have is an affinity that is not supported.
CUresult create_with_affinity(CUcontext* context, const CUexecAffinityParam* affinities, int count, unsigned flags, CUdevice device) {
  if (count > 0 && affinities == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (count <= 0) return create(context, 0, flags, device);
  const proto::DeviceFacts* facts = device_facts(device);
  int all = 0;
  if (facts == nullptr || device_attribute(*facts, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, all) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
  const std::span asked(affinities, static_cast<std::size_t>(count));
  const bool has_all = std::ranges::all_of(asked, [all](const CUexecAffinityParam& affinity) {
    const unsigned wanted = affinity.param.smCount.val;
    return affinity.type == CU_EXEC_AFFINITY_TYPE_SM_COUNT && wanted != 0 && std::cmp_less_equal(wanted, all);
  });
  return has_all ? create(context, asked.back().param.smCount.val, flags, device) : CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

}  // namespace

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) { return create(pctx, 0, flags, dev); }

// Graphics interoperation is not offered.
CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags, CUdevice dev) {
#if CUDA_VERSION >= 12050
  if (ctxCreateParams == nullptr) return create(pctx, 0, flags, dev);
  if (ctxCreateParams->cigParams != nullptr) return unsupported(ApiId::cuCtxCreate_v4);
  return create_with_affinity(pctx, ctxCreateParams->execAffinityParams, ctxCreateParams->numExecAffinityParams, flags, dev);
#else
  return ctxCreateParams == nullptr ? create(pctx, 0, flags, dev) : unsupported(ApiId::cuCtxCreate_v4);
#endif
}

CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams, unsigned int flags, CUdevice dev) {
  return create_with_affinity(pctx, paramsArray, numParams, flags, dev);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam* pExecAffinity, CUexecAffinityType type) {
  if (pExecAffinity == nullptr || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = require_context(); error != CUDA_SUCCESS) return error;
  int multiprocessors = 0;
  const CUresult error = device_attribute(*device_facts(current_device()), CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, multiprocessors);
  if (error != CUDA_SUCCESS) return error;
  pExecAffinity->type = type;
  const unsigned own = forward::multiprocessors_of_context(current_context());
  pExecAffinity->param.smCount.val = own != 0 ? own : static_cast<unsigned>(multiprocessors);
  return CUDA_SUCCESS;
}

CUresult cuCtxAttach(CUcontext* pctx, unsigned int flags) {
  if (pctx == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  proto::Known<ContextObject> context;
  if (const CUresult error = require_context(context); error != CUDA_SUCCESS) return error;
  if (context->primary || context->green != proto::GreenContextId{})
    return CUDA_ERROR_INVALID_CONTEXT;  // those are counted by cuDevicePrimaryCtxRetain
  context->usage_count.fetch_add(1, std::memory_order_relaxed);
  *pctx = current_context();
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx) {
  const auto context = find_context(ctx);
  const bool is_counted = context && !context->primary && context->green == proto::GreenContextId{};
  if (!is_counted || ctx != current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  return context->usage_count.fetch_sub(1, std::memory_order_acq_rel) == 1 ? destroy_context(ctx) : CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext ctx) { return ctx != nullptr ? destroy_context(ctx) : CUDA_ERROR_INVALID_VALUE; }

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!find_context(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
  return push_context(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) { return pop_context(pctx); }

CUresult cuCtxSetCurrent(CUcontext ctx) {
  if (are_calls_forbidden()) return CUDA_ERROR_NOT_PERMITTED;
  if (ctx != nullptr && !find_context(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
  set_current_context(ctx);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pctx = current_context();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) { return api::cuCtxGetDevice_v2(device, nullptr); }

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto context = find_context_or_current(ctx);
  if (!context) return ctx == nullptr && current_context() != nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  if (const CUresult error = require_context(); error != CUDA_SUCCESS) return error;
  return forward::synchronize_context(current_context());
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  if (ctx == nullptr) return api::cuCtxSynchronize();
  if (are_calls_forbidden()) return CUDA_ERROR_NOT_PERMITTED;
  if (!find_context(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
  return forward::synchronize_context(ctx);
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto context = find_context_or_current(ctx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  // The runtime asks this to learn whether a context still lives.
  if (context->primary && context->retain_count.load(std::memory_order_acquire) == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *version = device_facts(context->device)->context_api_version;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
  if (ctxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto context = find_context_or_current(ctx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *ctxId = context->unique_id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  proto::Known<ContextObject> context;
  if (const CUresult error = require_context(context); error != CUDA_SUCCESS) return error;
  *flags = context->flags.load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
  if (!valid_context_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  proto::Known<ContextObject> context;
  if (const CUresult error = require_context(context); error != CUDA_SUCCESS) return error;
  context->flags.store(flags, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
  if (pvalue == nullptr) return CUDA_ERROR_INVALID_VALUE;
  proto::Known<ContextObject> context;
  if (const CUresult error = check_limit(limit, context); error != CUDA_SUCCESS) return error;
  *pvalue = context->limits[static_cast<std::size_t>(limit)].load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

// The real context is shared and has the largest limits that any session asked for; each session is told its own.
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  proto::Known<ContextObject> context;
  if (const CUresult error = check_limit(limit, context); error != CUDA_SUCCESS) return error;
  if (limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return set_persisting_cache(*context, value);
  const std::uint64_t available = device_facts(context->device)->context_limit[limit];
  if (is_hint(limit)) {
    if (value > kMaxFetchGranularity) return CUDA_ERROR_INVALID_VALUE;
  } else if (value > available && value > context->limits[static_cast<std::size_t>(limit)].load(std::memory_order_relaxed)) {
    const CUresult error = forward::raise_context_limit(limit, value);
    if (error == CUDA_ERROR_NOT_SUPPORTED) {
      debug_line(DebugTopic::unsupported, "cuCtxSetLimit(%d) to %zu is refused: the context is shared, and was made with %llu.",
                 static_cast<int>(limit), value, static_cast<unsigned long long>(available));
    }
    if (error != CUDA_SUCCESS) return error;
  }
  context->limits[static_cast<std::size_t>(limit)].store(value, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
  if (pconfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
  proto::Known<ContextObject> context;
  if (const CUresult error = require_context(context); error != CUDA_SUCCESS) return error;
  *pconfig = context->cache_config.load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

// A preference, "interpreted as a hint" (manual): kept and told, not sent.
CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  proto::Known<ContextObject> context;
  if (const CUresult error = require_context(context); error != CUDA_SUCCESS) return error;
  context->cache_config.store(config, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) {
  if (pConfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
  proto::Known<ContextObject> context;
  if (const CUresult error = require_context(context); error != CUDA_SUCCESS) return error;
  *pConfig = context->shared_config.load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

// Devices since Maxwell have one bank size and ignore this (manual, deprecated since CUDA 12.4).
CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  if (config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) return CUDA_ERROR_INVALID_VALUE;
  proto::Known<ContextObject> context;
  if (const CUresult error = require_context(context); error != CUDA_SUCCESS) return error;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  proto::Known<ContextObject> context;
  if (const CUresult error = require_context(context); error != CUDA_SUCCESS) return error;
  const proto::DeviceFacts& facts = *device_facts(context->device);
  if (leastPriority != nullptr) *leastPriority = facts.least_stream_priority;
  if (greatestPriority != nullptr) *greatestPriority = facts.greatest_stream_priority;
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
