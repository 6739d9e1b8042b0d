// SPDX-License-Identifier: Apache-2.0
//
// Every address that the device may touch: allocations, mapped VMM ranges, pinned and registered host memory, module
// globals. One instance per process; any thread may ask or change. Device addresses are this process's own addresses.
// Kernels ask through ptx::AddressMap at each access (and cache the answer), copies ask once when they run. Nobody is
// trusted to give an address that exists: what is not here is an illegal address.
//
// Whoever removes a range keeps its pages mapped until what runs has ended (Scheduler::when_quiet).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "broker/cpudriver/ptx/address_map.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

enum class MemoryKind {
  device,           // cuMemAlloc, and what the driver itself takes for kernels
  managed,          // cuMemAllocManaged
  mapped,           // cuMemMap with access set
  module_global,
  external,         // of another interface: what is mapped onto cuImportExternalMemory's objects
  pinned_host,      // cuMemHostAlloc
  registered_host,  // cuMemHostRegister
};

struct MemoryRange {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  MemoryKind kind = MemoryKind::device;
  bool is_writable = true;  // by the device
  unsigned flags = 0;       // as given to cuMemHostAlloc or cuMemHostRegister
  std::uint64_t id = 0;     // CU_POINTER_ATTRIBUTE_BUFFER_ID; filled in by insert()

  std::uint64_t end() const { return begin + size; }
  bool is_host() const { return kind == MemoryKind::pinned_host || kind == MemoryKind::registered_host; }
};

class MemoryMap final : public ptx::AddressMap {
 public:
  static MemoryMap& get();

  // False if the range is empty, wraps, or overlaps one that is here.
  [[nodiscard]] bool insert(MemoryRange range);
  // The range that began here and was of this kind; empty if there is none, and then nothing changed.
  std::optional<MemoryRange> remove(std::uint64_t begin, MemoryKind kind);

  [[nodiscard]] std::optional<MemoryRange> containing(std::uint64_t address) const;
  // All bytes are accessible to the device; they may lie in several adjacent ranges.
  [[nodiscard]] bool is_accessible(std::uint64_t address, std::uint64_t size, bool for_writing) const;
  [[nodiscard]] bool overlaps_any(std::uint64_t begin, std::uint64_t size) const;

  [[nodiscard]] ptx::AddressRange find(std::uint64_t address) const override;
  [[nodiscard]] std::uint64_t generation() const override { return generation_.load(std::memory_order_acquire); }

 private:
  MemoryMap() = default;
  const MemoryRange* lookup(std::uint64_t address) const REQUIRES_SHARED(mutex_);

  mutable SharedMutex mutex_;
  std::map<std::uint64_t, MemoryRange> ranges_ GUARDED_BY(mutex_);  // by begin, never overlapping
  std::uint64_t next_id_ GUARDED_BY(mutex_) = 1;
  // Incremented after each change and read by the engine's threads before they trust a cached answer.
  std::atomic<std::uint64_t> generation_{1};
};

}  // namespace mpsshim::cpudriver
