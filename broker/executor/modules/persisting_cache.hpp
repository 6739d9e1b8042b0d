// SPDX-License-Identifier: Apache-2.0
// How much of the L2 cache the one context sets aside for persisting accesses (CU_LIMIT_PERSISTING_L2_CACHE_SIZE): the largest of the sessions'
// wishes. What is set aside is taken from everybody's ordinary accesses, so it shrinks again when a session wishes less, or ends.
//
// wish() and forget() on any thread, apply() in quiet windows alone: the driver's call waits for running kernels.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "broker/driver/driver.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class PersistingCache {
 public:
  PersistingCache(const Driver& driver, CUdevice device) : driver_(driver), device_(device) {}
  PersistingCache(const PersistingCache&) = delete;

  // Bounded by what the device can set aside. 0: none.
  void wish(std::uint64_t session, std::uint64_t bytes);
  // The session has ended.
  void forget(std::uint64_t session);
  // Tells the driver where that has changed since. The driver's answer; CUDA_SUCCESS where nothing was to be told.
  [[nodiscard]] CUresult apply();

 private:
  const Driver& driver_;
  const CUdevice device_;
  Mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> wishes_ GUARDED_BY(mutex_);  // by session
  std::optional<std::uint64_t> first_ GUARDED_BY(mutex_);             // what the context began with, once it was asked
  std::uint64_t applied_ GUARDED_BY(mutex_) = 0;
};

}  // namespace mpsshim::broker
