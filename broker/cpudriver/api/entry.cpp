// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/api/entry.hpp"

#include <atomic>

#include "broker/cpudriver/context/context.hpp"
#include "broker/cpudriver/context/green_context.hpp"

// By this symbol the executor knows the driver (broker/driver/driver.hpp).
extern "C" const char mpsshim_cpu_driver[] = "PTX on the CPU";

namespace mpsshim::cpudriver {
namespace {

std::atomic<bool> is_initialised{false};

}  // namespace

void mark_initialised() { is_initialised.store(true, std::memory_order_release); }

CUresult check(Needs needs) {
  if (needs == Needs::nothing) return CUDA_SUCCESS;
  if (!is_initialised.load(std::memory_order_acquire)) return CUDA_ERROR_NOT_INITIALIZED;
  if (needs == Needs::initialised) return CUDA_SUCCESS;
  if (needs == Needs::device) return Scheduler::get().failure();
  const CUcontext current = Context::current();
  if (current == nullptr) return needs == Needs::handle ? Scheduler::get().failure() : CUDA_ERROR_INVALID_CONTEXT;
  if (!Context::primary().is_mine(current) && GreenContext::find(current) == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!Context::primary().is_active()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return Scheduler::get().failure();
}

StreamPtr stream_of(CUstream handle) {
  const bool is_per_thread = handle == CU_STREAM_PER_THREAD;
  if (handle == nullptr || handle == CU_STREAM_LEGACY || is_per_thread) {
    if (const GreenContextPtr green = GreenContext::current()) return is_per_thread ? nullptr : green->null_stream();
    return is_per_thread ? Stream::per_thread_default() : Stream::legacy_default();
  }
  return HandleTable<Stream>::get().find(handle);
}

}  // namespace mpsshim::cpudriver
