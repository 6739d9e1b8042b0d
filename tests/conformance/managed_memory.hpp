// SPDX-License-Identifier: Apache-2.0
// Managed memory for a case's life.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "driver_under_test.hpp"

namespace mpsshim::test {

#define NEEDS_MANAGED_MEMORY() \
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no managed memory: it is made in the client")

inline int has_concurrent_managed_access() {
  int value = -1;
  OK(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
  return value;
}

#define NEEDS_CONCURRENT_ACCESS() \
  NEEDS_MANAGED_MEMORY();         \
  if (has_concurrent_managed_access() != 1) MPSSHIM_SKIP("the device has no concurrent access to managed memory")

class ManagedWords {
 public:
  explicit ManagedWords(size_t count) : count_(count) { OK(CU(cuMemAllocManaged)(&address_, count * 4, CU_MEM_ATTACH_GLOBAL)); }
  ~ManagedWords() { CU(cuMemFree)(address_); }
  ManagedWords(const ManagedWords&) = delete;
  ManagedWords& operator=(const ManagedWords&) = delete;
  CUdeviceptr address(size_t word = 0) const { return address_ + word * 4; }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * 4; }
  volatile unsigned& operator[](size_t word) const { return reinterpret_cast<volatile unsigned*>(address_)[word]; }
  unsigned* data() const { return reinterpret_cast<unsigned*>(address_); }

 private:
  CUdeviceptr address_ = 0;
  size_t count_;
};

// Where host and device have managed memory at once nobody waits for a kernel by touching it: the case does. Where it migrates, the touch does.
inline void before_touch() {
  const char* const mode = std::getenv("MPSSHIM_MANAGED");
  const bool waits_by_itself = driver_kind() == DriverKind::forwarded && mode != nullptr && std::string_view(mode) != "host";
  if (!waits_by_itself) OK(CU(cuCtxSynchronize)());
}

// Buffers of system calls are noticed by userfaultfd alone, and not by every process's.
inline bool notices_system_calls() {
  const char* const way = std::getenv("MPSSHIM_MANAGED_TOUCHES");
  return way == nullptr || std::string_view(way) != "signal";
}

}  // namespace mpsshim::test
