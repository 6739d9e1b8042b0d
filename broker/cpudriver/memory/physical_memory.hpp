// SPDX-License-Identifier: Apache-2.0
//
// Device memory as cuMemCreate makes it: a sealed memfd, so that its content outlives this process as long as anybody
// holds the descriptor. Shared ownership: its handles (MemoryHandles) and its mappings. Any thread may call.
// A descriptor that is imported is not trusted: it must be a memfd that nobody can shrink, of a whole number of
// granules, else an access could end in SIGBUS.
#pragma once

#include <cuda.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

// Bytes of device memory in use in this process, against the size that Config gives the device.
class MemoryBudget {
 public:
  static MemoryBudget& get();

  [[nodiscard]] bool take(std::size_t bytes);
  void take_without_limit(std::size_t bytes);  // an import: the memory exists already
  void give_back(std::size_t bytes);
  std::size_t free_bytes() const;

 private:
  mutable Mutex mutex_;
  std::size_t used_bytes_ GUARDED_BY(mutex_) = 0;
};

class PhysicalMemory {
 public:
  static constexpr std::size_t kGranularity = std::size_t{2} << 20;  // as on every GPU since Pascal

  // What cuMemCreate may ask for.
  struct Properties {
    bool is_exportable = false;
    bool is_compressible = false;  // said of it, here and wherever it is imported; no byte is compressed
    bool is_elsewhere = false;     // another device's, which it is counted on
  };

  PhysicalMemory(int fd, std::size_t size_bytes, Properties properties);  // takes over fd and the budget already taken
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  // Both return CUDA_SUCCESS and fill `memory`, or an error and leave it.
  static CUresult create(std::size_t size_bytes, Properties properties, std::shared_ptr<PhysicalMemory>& memory);
  // The descriptor stays the caller's. Importing what this process made, or has imported, gives the same object.
  static CUresult import(int fd, std::shared_ptr<PhysicalMemory>& memory);

  int fd() const { return fd_; }
  int duplicate_fd() const;  // the caller's own, close-on-exec; -1 if there is none to be had
  std::size_t size_bytes() const { return size_bytes_; }
  bool is_exportable() const { return properties_.is_exportable; }
  bool is_compressible() const { return properties_.is_compressible; }

 private:
  const int fd_;
  const std::size_t size_bytes_;
  const Properties properties_;
};

// CUmemGenericAllocationHandle to memory, with CUDA's counts: each handle is released as often as it was returned.
class MemoryHandles {
 public:
  static MemoryHandles& get();

  CUmemGenericAllocationHandle add(std::shared_ptr<PhysicalMemory> memory);
  // A handle of this memory that exists, counted once more, or a new one.
  CUmemGenericAllocationHandle retain(const std::shared_ptr<PhysicalMemory>& memory);
  std::shared_ptr<PhysicalMemory> find(CUmemGenericAllocationHandle handle);
  [[nodiscard]] bool release(CUmemGenericAllocationHandle handle);

 private:
  struct Entry {
    std::shared_ptr<PhysicalMemory> memory;
    unsigned references = 1;
  };

  Mutex mutex_;
  std::map<CUmemGenericAllocationHandle, Entry> entries_ GUARDED_BY(mutex_);
  CUmemGenericAllocationHandle next_ GUARDED_BY(mutex_) = 1;
};

}  // namespace mpsshim::cpudriver
