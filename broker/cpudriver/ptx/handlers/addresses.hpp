// SPDX-License-Identifier: Apache-2.0
//
// From an address operand to 32 checked host addresses. Include only from handlers/*.cpp.
//
// Spaces: global, const and generic addresses are host addresses. A .shared address is an offset in the block's
// shared memory, a .local one an offset in the thread's local memory, a .param one an offset in the kernel's
// parameters. Generic addresses also reach those three through windows of the warp.
#pragma once

#include "broker/cpudriver/ptx/handlers/lanes.hpp"

namespace mpsshim::ptx {

// execution_memory.cpp: lane by lane; raises the fault of the lowest guilty lane. True if all may be touched.
[[nodiscard]] bool check_lanes(Warp& warp, const Instruction& in, const std::uint64_t* address, std::uint32_t bytes, std::uint32_t alignment,
                               bool is_write);
[[nodiscard]] bool check_offsets(Warp& warp, const Instruction& in, const std::uint64_t* offset, std::uint32_t bytes, std::uint32_t alignment,
                                 std::uint64_t limit, bool is_write);

namespace MPSSHIM_PTX_ISA {
namespace {

struct Access {
  std::uint64_t bytes;  // Of one lane.
  std::uint64_t alignment;
  bool is_write = false;
  bool is_uniform = false;     // Out: all active lanes have one address.
  bool is_contiguous = false;  // Out: lane i is at address[0] + i * bytes, if all lanes are active.
};

[[gnu::always_inline]] inline void operand_addresses(const Warp& warp, const Instruction& in, std::uint64_t* address) {
  const auto offset = static_cast<std::uint64_t>(in.imm);
  if ((in.flags & kFlagWideAddress) != 0) {
    const auto* a = row<const std::uint64_t>(warp, in.a);
    MPSSHIM_LANE_LOOP
    for (std::uint32_t i = 0; i < kLanes; ++i) address[i] = a[i] + offset;
  } else {
    const auto* a = row<const std::uint32_t>(warp, in.a);
    MPSSHIM_LANE_LOOP
    for (std::uint32_t i = 0; i < kLanes; ++i) address[i] = static_cast<std::uint32_t>(a[i] + static_cast<std::uint32_t>(offset));
  }
  if (warp.exec == kAllLanes) return;
  const std::uint64_t first = address[__builtin_ctz(warp.exec)];  // Idle lanes must not decide the bounds.
  MPSSHIM_LANE_LOOP
  for (std::uint32_t i = 0; i < kLanes; ++i) address[i] = (warp.exec & kLaneBit[i]) != 0 ? address[i] : first;
}

struct Bounds {
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  std::uint64_t bits = 0;  // All addresses or-ed.
};

[[gnu::always_inline]] inline Bounds bounds_of(const std::uint64_t* address, Access& access) {
  std::uint64_t scattered = 0;
  std::uint64_t different = 0;
  std::uint64_t bits = 0;
  for (std::uint32_t i = 0; i < kLanes; ++i) {
    scattered |= address[i] ^ (address[0] + i * access.bytes);
    different |= address[i] ^ address[0];
    bits |= address[i];
  }
  access.is_uniform = different == 0;
  if (access.is_uniform) return {static_cast<std::int64_t>(address[0]), static_cast<std::int64_t>(address[0]), bits};
  access.is_contiguous = scattered == 0;
  if (access.is_contiguous) {
    return {static_cast<std::int64_t>(address[0]), static_cast<std::int64_t>(address[kLanes - 1]), bits};
  }
  auto lowest = static_cast<std::int64_t>(address[0]);  // User space is below 2^63; what is not fails as negative.
  auto highest = lowest;
  for (std::uint32_t i = 1; i < kLanes; ++i) {
    const auto v = static_cast<std::int64_t>(address[i]);
    lowest = v < lowest ? v : lowest;
    highest = v > highest ? v : highest;
  }
  return {lowest, highest, bits};
}

[[gnu::always_inline]] inline bool holds(const AddressRange& range, const Bounds& bounds, const Access& access) {
  return bounds.lowest >= static_cast<std::int64_t>(range.begin) &&
         bounds.highest + static_cast<std::int64_t>(access.bytes) <= static_cast<std::int64_t>(range.end) && (!access.is_write || range.is_writable);
}

// Shared, local and parameter offsets: against one limit, then moved to their window.
[[gnu::always_inline]] inline bool resolve_window(Warp& warp, const Instruction& in, Access& access, std::uint64_t* address) {
  Bounds bounds = bounds_of(address, access);
  const Window window = in.space == Space::shared ? Window::shared : in.space == Space::local ? Window::local : Window::parameters;
  const AddressRange& range = warp.windows[static_cast<std::size_t>(window)];
  const std::uint64_t limit = in.space == Space::local ? warp.local_stride : range.end - range.begin;
  const bool fits = bounds.lowest >= 0 && bounds.highest + static_cast<std::int64_t>(access.bytes) <= static_cast<std::int64_t>(limit) &&
                    (bounds.bits & (access.alignment - 1)) == 0 && (!access.is_write || range.is_writable);
  if (!fits && !check_offsets(warp, in, address, static_cast<std::uint32_t>(access.bytes), static_cast<std::uint32_t>(access.alignment), limit,
                              access.is_write))
    return false;
  const std::uint64_t stride = in.space == Space::local ? warp.local_stride : 0;
  if (stride != 0) access.is_contiguous = access.is_uniform = false;
  MPSSHIM_LANE_LOOP
  for (std::uint32_t i = 0; i < kLanes; ++i) address[i] += range.begin + i * stride;
  return true;
}

// False: the fault is raised.
[[gnu::always_inline]] inline bool resolve(Warp& warp, const Instruction& in, Access& access, std::uint64_t* address) {
  operand_addresses(warp, in, address);
  if (in.space == Space::shared || in.space == Space::local || in.space == Space::param) return resolve_window(warp, in, access, address);
  const Bounds bounds = bounds_of(address, access);
  if ((bounds.bits & (access.alignment - 1)) == 0) {
    for (std::uint32_t k = 0; k < MemoryView::kCached; ++k) {
      if (holds(warp.view->ranges[k], bounds, access)) return true;
    }
    if (in.space == Space::none) {
      for (const AddressRange& window : warp.windows) {
        if (holds(window, bounds, access)) return true;
      }
    }
  }
  return check_lanes(warp, in, address, static_cast<std::uint32_t>(access.bytes), static_cast<std::uint32_t>(access.alignment), access.is_write);
}

}  // namespace
}  // namespace MPSSHIM_PTX_ISA
}  // namespace mpsshim::ptx
