// SPDX-License-Identifier: Apache-2.0
//
// The primary context of the device that the process computes on (Devices), and which context is current to a thread. One instance per process; any
// thread may call. The objects of the context (streams, memory, modules) live in their own tables; how the context dies is told by
// Scheduler::failure().
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "broker/cpudriver/context/exclusive_process.hpp"
#include "proto/device_facts.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

class Context {
 public:
  static constexpr unsigned long long kId = 1;
  static constexpr int kLeastPriority = 0;
  static constexpr int kGreatestPriority = -5;

  static Context& primary();

  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
  bool is_mine(CUcontext handle) const { return handle == reinterpret_cast<CUcontext>(const_cast<Context*>(this)); }

  // CUDA_ERROR_NOT_SUPPORTED: the process computes on another device. CUDA_ERROR_DEVICE_UNAVAILABLE: the device takes one process at a time, and
  // another has it.
  [[nodiscard]] CUresult retain(CUdevice device);
  [[nodiscard]] bool release();
  bool is_active() const { return references_.load() > 0; }

  // Of each device's primary context, active or not.
  unsigned flags(CUdevice device) const { return flags_[static_cast<std::size_t>(device)]; }
  void set_flags(CUdevice device, unsigned flags) { flags_[static_cast<std::size_t>(device)] = flags; }

  CUresult set_limit(CUlimit limit, std::size_t value);
  CUresult limit(CUlimit limit, std::size_t& value) const;
  // CU_LIMIT_STACK_SIZE, for launches.
  std::size_t stack_bytes() const;

  // The calling thread's stack of current contexts. Null: no context.
  static CUcontext current();
  static void set_current(CUcontext context);
  static void push_current(CUcontext context);
  [[nodiscard]] static bool pop_current(CUcontext& context);

 private:
  // Cache is set aside for persisting lines in sixteenths of the 4 MiB that there are (device/attributes.cpp).
  static constexpr std::size_t kPersistingShare = (std::size_t{4} << 20) / 16;
  static constexpr std::size_t kLimits = 7;

  Context() = default;

  std::atomic<int> references_{0};
  Mutex process_mutex_;  // references and process_ together
  ExclusiveProcess process_ GUARDED_BY(process_mutex_);
  std::array<std::atomic<unsigned>, proto::kMaxDevices> flags_{};
  mutable Mutex limits_mutex_;
  // By CUlimit, 0…6: stack, printf buffer, heap (kept by DeviceHeap), sync depth, pending launches, L2 fetch, L2 persisting.
  std::array<std::size_t, kLimits> limits_ GUARDED_BY(limits_mutex_){1024, std::size_t{1} << 20, 0, 2, 2048, 64, 3 * kPersistingShare};
};

}  // namespace mpsshim::cpudriver
