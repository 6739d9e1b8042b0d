// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/context/context.hpp"

#include <vector>

#include "broker/cpudriver/device/attributes.hpp"
#include "broker/cpudriver/device/devices.hpp"
#include "broker/cpudriver/memory/device_heap.hpp"

namespace mpsshim::cpudriver {
namespace {

constexpr std::size_t kMaxStackBytes = 512 * 1024;  // local memory a thread can have, CUDA Programming Guide

std::vector<CUcontext>& thread_stack() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

}  // namespace

Context& Context::primary() {
  static Context& context = *new Context;
  return context;
}

CUresult Context::retain(CUdevice device) {
  if (const CUresult claimed = Devices::get().claim(device); claimed != CUDA_SUCCESS) return claimed;
  const std::lock_guard lock(process_mutex_);
  if (references_ == 0 && !process_.claim()) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  ++references_;
  return CUDA_SUCCESS;
}

bool Context::release() {
  const std::lock_guard lock(process_mutex_);
  if (references_ == 0) return false;
  if (--references_ == 0) process_.release();
  return true;
}

CUresult Context::set_limit(CUlimit limit, std::size_t value) {
  const auto index = static_cast<std::size_t>(limit);
  if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) {
    return DeviceHeap::get().set_size(value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (index >= kLimits) return CUDA_ERROR_INVALID_VALUE;
  if (limit == CU_LIMIT_STACK_SIZE && value > kMaxStackBytes) return CUDA_ERROR_INVALID_VALUE;
  if (limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY && value > 128) return CUDA_ERROR_INVALID_VALUE;
  if (limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE) {
    if (value > static_cast<std::size_t>(attribute_of(CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE))) return CUDA_ERROR_INVALID_VALUE;
    value = (value + kPersistingShare - 1) / kPersistingShare * kPersistingShare;
  }
  const std::lock_guard lock(limits_mutex_);
  limits_[index] = value;
  return CUDA_SUCCESS;
}

CUresult Context::limit(CUlimit limit, std::size_t& value) const {
  const auto index = static_cast<std::size_t>(limit);
  if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) {
    value = DeviceHeap::get().size();
    return CUDA_SUCCESS;
  }
  if (index >= kLimits) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(limits_mutex_);
  value = limits_[index];
  return CUDA_SUCCESS;
}

std::size_t Context::stack_bytes() const {
  const std::lock_guard lock(limits_mutex_);
  return limits_[CU_LIMIT_STACK_SIZE];
}

CUcontext Context::current() {
  const auto& stack = thread_stack();
  return stack.empty() ? nullptr : stack.back();
}

void Context::set_current(CUcontext context) {
  auto& stack = thread_stack();
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
}

void Context::push_current(CUcontext context) { thread_stack().push_back(context); }

bool Context::pop_current(CUcontext& context) {
  auto& stack = thread_stack();
  if (stack.empty()) return false;
  context = stack.back();
  stack.pop_back();
  return true;
}

}  // namespace mpsshim::cpudriver
