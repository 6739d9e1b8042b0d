// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/green/green_context.hpp"

#include <utility>

#include "broker/executor/base/core.hpp"
#include "broker/executor/green/green_resources.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

GreenContextSlot count_green_context(ExecutorCore& core, const GreenContextCount& of_session) {
  ++*of_session;
  ++core.green_contexts;
  const auto uncount = [of_session, all = &core.green_contexts](void*) {
    --*of_session;
    --*all;
  };
  return {nullptr, uncount};
}

CUresult GreenContext::make(ExecutorCore& core, CUdevResourceDesc descriptor, std::string identity, GreenContextSlot slot, GreenContextRef& made) {
  GreenContextRef green(new GreenContext(core, std::move(identity), std::move(slot)), &GreenContext::let_go);
  const CUresult result = green->open(descriptor);
  if (result != CUDA_SUCCESS) {
    green->end();
    return result;
  }
  made = std::move(green);
  made->chains_->set_keeper(made);
  return CUDA_SUCCESS;
}

CUresult GreenContext::open(CUdevResourceDesc descriptor) {
  CUresult result = core_.driver->cuGreenCtxCreate(&handle_, descriptor, core_.device, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) {
    handle_ = nullptr;
    return result;
  }
  CUdevResource resource{};
  result = core_.driver->cuGreenCtxGetDevResource(handle_, &resource, CU_DEV_RESOURCE_TYPE_SM);
  told_ = told_of(resource);
  if (result == CUDA_SUCCESS) result = core_.driver->cuCtxFromGreenCtx(&context_, handle_);
  if (result != CUDA_SUCCESS) return result;
  chains_ = std::make_unique<ChainPool>(core_, context_, issue_lock_);
  chains_->stock();
  return CUDA_SUCCESS;
}

// Graphs first: their nodes are its.
void GreenContext::end() {
  chains_.reset();
  if (handle_ != nullptr) core_.driver->cuGreenCtxDestroy(std::exchange(handle_, nullptr));
  slot_.reset();
}

void GreenContext::let_go(GreenContext* green) {
  std::unique_ptr<GreenContext> last(green);
  if (last->handle_ == nullptr) return;
  last->core_.window.submit(
      {"cuGreenCtxDestroy", 0, true, [shared = std::shared_ptr<GreenContext>(std::move(last))](WindowResult) { shared->end(); }});
}

}  // namespace mpsshim::broker
