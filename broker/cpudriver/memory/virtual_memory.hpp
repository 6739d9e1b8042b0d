// SPDX-License-Identifier: Apache-2.0
//
// Reserved address ranges and what is mapped in them (CUDA Driver API manual, "Virtual Memory Management"). One
// instance per process; any thread may call; one mutex. A reservation is PROT_NONE memory of this process, so an
// address taken here is taken for everybody. Mappings become accessible to the device, that is: enter MemoryMap, only
// with access set. The pages themselves stay readable and writable while kernels may still run on them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "broker/cpudriver/memory/physical_memory.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

class VirtualMemory {
 public:
  static VirtualMemory& get();

  // `hint` is where it should begin, 0: anywhere. Like the driver, reserves elsewhere if that is taken.
  CUresult reserve(std::size_t size, std::size_t alignment, std::uint64_t hint, std::uint64_t& begin);
  CUresult free(std::uint64_t begin, std::size_t size);
  CUresult map(std::uint64_t begin, std::size_t size, std::size_t offset, std::shared_ptr<PhysicalMemory> memory);
  CUresult unmap(std::uint64_t begin, std::size_t size);
  CUresult set_access(std::uint64_t begin, std::size_t size, CUmemAccess_flags access);

  // What is mapped at the address, or null; `access` (optional) receives its access.
  std::shared_ptr<PhysicalMemory> mapped_at(std::uint64_t address, CUmemAccess_flags* access = nullptr);

 private:
  struct Mapping {
    std::size_t size = 0;
    std::shared_ptr<PhysicalMemory> memory;
    CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  };
  using Mappings = std::map<std::uint64_t, Mapping>;

  bool is_reserved(std::uint64_t begin, std::size_t size) const REQUIRES(mutex_);
  bool covers_whole_mappings(std::uint64_t begin, std::size_t size) const REQUIRES(mutex_);
  void forget_pages(std::uint64_t begin, std::size_t size);

  Mutex mutex_;
  std::map<std::uint64_t, std::size_t> reservations_ GUARDED_BY(mutex_);  // begin to size
  Mappings mappings_ GUARDED_BY(mutex_);                                  // by begin
};

}  // namespace mpsshim::cpudriver
