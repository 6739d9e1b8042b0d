// SPDX-License-Identifier: Apache-2.0
//
// What malloc() and free() of kernels take from and give to: CU_LIMIT_MALLOC_HEAP_SIZE bytes, taken from the device
// at the first use. One per process; called from all of the engine's threads. First fit over an ordered map: kernels
// that allocate are rare, and their pointers are not trusted (a bad one is ignored, as free() of a wild pointer may be).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "broker/cpudriver/ptx/engine.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

class DeviceHeap final : public ptx::DeviceHeap {
 public:
  static constexpr std::size_t kDefaultBytes = std::size_t{8} << 20;  // the driver's default

  static DeviceHeap& get();

  // False once the heap is in use: the driver refuses then, too.
  [[nodiscard]] bool set_size(std::size_t bytes);
  std::size_t size() const;

  [[nodiscard]] std::uint64_t allocate(std::uint64_t bytes) override;
  void release(std::uint64_t address) override;

 private:
  bool is_ready() REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::size_t size_ GUARDED_BY(mutex_) = kDefaultBytes;
  std::uint64_t base_ GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::uint64_t> free_ GUARDED_BY(mutex_);  // begin to size, never adjacent
  std::map<std::uint64_t, std::uint64_t> used_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::cpudriver
