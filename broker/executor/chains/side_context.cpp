// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chains/side_context.hpp"
#include "broker/executor/base/empty_kernel.hpp"

#include <optional>
#include <utility>

#include "broker/executor/base/core.hpp"
#include "broker/executor/chains/chain.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

std::unique_ptr<SideContext> SideContext::make(ExecutorCore& core, unsigned number) {
  std::unique_ptr<SideContext> side(new SideContext);
  const char* call = nullptr;
  const CUresult result = side->open(core, number, call);
  if (result == CUDA_SUCCESS) return side;
  log_info("Clients that wait after every few launches are served by {} worker{} at most: the driver refused {}: {}", number, number == 1 ? "" : "s",
           call, core.driver.describe(result));
  side->end(core.driver);
  return nullptr;
}

CUresult SideContext::open(ExecutorCore& core, unsigned number, const char*& call) {
  const Driver& driver = core.driver;
  CUdevResource all{};
  CUdevResourceDesc descriptor = nullptr;
  call = "cuDeviceGetDevResource";
  CUresult result = driver->cuDeviceGetDevResource(core.device, &all, CU_DEV_RESOURCE_TYPE_SM);
  if (result != CUDA_SUCCESS) return result;
  call = "cuDevResourceGenerateDesc";
  result = driver->cuDevResourceGenerateDesc(&descriptor, &all, 1);
  if (result != CUDA_SUCCESS) return result;
  call = "cuGreenCtxCreate";
  result = driver->cuGreenCtxCreate(&handle_, descriptor, core.device, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) {
    handle_ = nullptr;
    return result;
  }
  result = driver->cuCtxFromGreenCtx(&context_, handle_);
  if (result != CUDA_SUCCESS) return result;
  chains_ = std::make_unique<ChainPool>(core, context_, issue_lock_, number);
  chains_->stock();
  call = "cuGreenCtxStreamCreate";
  mutex_.assume_held();  // see warm_up()
  for (unsigned i = 0; i < kStreams; ++i) {
    CUstream stream = nullptr;
    result = driver->cuGreenCtxStreamCreate(&stream, handle_, CU_STREAM_NON_BLOCKING, 0);
    if (result != CUDA_SUCCESS) return result;
    free_.push_back(stream);
  }
  call = "a first launch";
  return warm_up(core);
}

// What the driver makes at a first launch, of a kernel and of a graph, is made now.
CUresult SideContext::warm_up(ExecutorCore& core) {
  mutex_.assume_held();  // nobody else knows it yet, as in open() and end()
  const Driver& driver = core.driver;
  for (const CUstream stream : free_) {
    CUresult result = driver->cuLaunchKernel(core.nop_function, 1, 1, 1, 1, 1, 1, 0, stream, EmptyKernelParameters().addresses, nullptr);
    if (result == CUDA_SUCCESS) result = driver->cuStreamSynchronize(stream);
    if (result != CUDA_SUCCESS) return result;
  }
  const std::optional<std::uint32_t> word = core.progress.take();
  if (!word) return CUDA_ERROR_OUT_OF_MEMORY;
  ChainCache chains(core, *chains_);
  const WordWrites words{.fence = {}, .progress = core.progress.completed(*word)};
  (void)chains.launch(free_.front(), {}, &words);  // without it launches here will be plain ones
  const CUresult result = driver->cuStreamSynchronize(free_.front());
  core.progress.give_back(*word);
  return result;
}

void SideContext::end(const Driver& driver) {
  mutex_.assume_held();
  for (const CUstream stream : free_) driver->cuStreamDestroy_v2(stream);
  chains_.reset();
  if (handle_ != nullptr) driver->cuGreenCtxDestroy(handle_);
}

std::unique_ptr<SideStream> SideContext::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return nullptr;
  auto stream = std::make_unique<SideStream>(*this, free_.back());
  free_.pop_back();
  return stream;
}

void SideContexts::want() {
  if (!wanted_.exchange(true, std::memory_order_relaxed)) make_next_in_window();
}

void SideContexts::make_next_in_window() {
  if (core_.side_contexts == 0) return;
  const auto make = [this](WindowResult) {
    {
      const std::size_t number = contexts_.size() + 1;
      const auto in_order = core_.control.note(LogKind::side_contexts, number);
      make_up_to(number);
    }
    if (!is_complete()) make_next_in_window();
  };
  core_.window.submit({.what = "making a side context", .deferrable = true, .run = make, .is_due = true});
}

bool SideContexts::is_complete() const { return refused_ || contexts_.size() >= core_.side_contexts; }

void SideContexts::make_up_to(std::size_t count) {
  contexts_.reserve(core_.side_contexts);
  while (contexts_.size() < count && !is_complete()) {
    std::unique_ptr<SideContext> side = SideContext::make(core_, static_cast<unsigned>(contexts_.size()) + 1);
    if (!side)
      refused_ = true;
    else
      contexts_.push_back(std::move(side));
  }
  if (!is_complete() || this->count() != 0) return;
  wanted_.store(true, std::memory_order_relaxed);
  count_.store(contexts_.size(), std::memory_order_release);
  if (!contexts_.empty()) log_info("{} workers have a context of their own from now on, for clients that wait often", contexts_.size() + 1);
}

SideStream::~SideStream() {
  const std::lock_guard lock(context_.mutex_);
  context_.free_.push_back(handle_);
}

std::size_t SideContext::free_streams() {
  const std::lock_guard lock(mutex_);
  return free_.size();
}

}  // namespace mpsshim::broker
