// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/driver_areas.hpp"

#include <array>
#include <atomic>
#include <bit>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mpsshim::broker::driver_areas {

namespace {

std::atomic<bool> is_kept{false};
std::array<std::atomic<std::uint64_t>, kLargestLog2 + 1> taken{};  // places of each size, by its logarithm

}  // namespace

void keep_in_order() { is_kept.store(true, std::memory_order_relaxed); }

std::uintptr_t next_place(std::size_t bytes) {
  if (!is_kept.load(std::memory_order_relaxed) || bytes < kSmallestBytes) return 0;
  const unsigned log2 = static_cast<unsigned>(std::bit_width(bytes - 1));
  if (log2 > kLargestLog2) return 0;
  const std::uint64_t number = taken[log2].fetch_add(1, std::memory_order_relaxed);
  if (number >= kRowBytes >> log2) return 0;
  return kBegin + log2 * kRowBytes + (number << log2);
}

}  // namespace mpsshim::broker::driver_areas

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

void* map_in_order(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  if (address == nullptr && (flags & MAP_ANONYMOUS) != 0) {
    if (const std::uintptr_t place = mpsshim::broker::driver_areas::next_place(bytes)) {
      const long mapped = syscall(SYS_mmap, place, bytes, protection, flags | MAP_FIXED_NOREPLACE, file, offset);
      if (mapped != -1) return reinterpret_cast<void*>(mapped);
    }
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

}  // namespace

// Exported by mpsbroker (CMake: export-dynamic-symbol), so that the driver's calls come here.
extern "C" __attribute__((visibility("default"))) void* mmap(void* address, std::size_t bytes, int protection, int flags, int file,
                                                             off_t offset) noexcept {
  return map_in_order(address, bytes, protection, flags, file, offset);
}
extern "C" __attribute__((visibility("default"))) void* mmap64(void* address, std::size_t bytes, int protection, int flags, int file,
                                                               off64_t offset) noexcept {
  return map_in_order(address, bytes, protection, flags, file, offset);
}

#endif
