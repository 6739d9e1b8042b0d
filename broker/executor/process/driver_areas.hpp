// SPDX-License-Identifier: Apache-2.0
// Where the driver's own areas of address space lie. It takes them by mmap, as it needs them, wherever the kernel finds room below what the
// process has mapped so far: thread stacks and malloc's arenas, which come and go in another order each time. Modules' variables and code lie in
// such areas, and have to come back at their addresses in an executor's next life. So mpsbroker has an mmap of its own, which gives large
// anonymous mappings that leave the address to the kernel places in a fixed order; one row for each power of two, so that an area of another
// size (staging, local memory) moves none. Everything else, and all there is before keep_in_order(), goes to the kernel unchanged.
// glibc's own mappings do not come here. Thread safe. Without effect in builds with a sanitizer, which has an mmap of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mpsshim::broker::driver_areas {

inline constexpr std::size_t kSmallestBytes = 2u << 20;
inline constexpr unsigned kLargestLog2 = 37;
inline constexpr std::uintptr_t kBegin = 0x7000'0000'0000;            // far from clients' memory (LeaseTable) and from what the kernel places
inline constexpr std::uintptr_t kRowBytes = std::uintptr_t{1} << 38;  // of addresses, for each size

// From now on, in this process.
void keep_in_order();

// The next place for an area of that size, aligned to it; 0: leave it to the kernel.
[[nodiscard]] std::uintptr_t next_place(std::size_t bytes);

}  // namespace mpsshim::broker::driver_areas
