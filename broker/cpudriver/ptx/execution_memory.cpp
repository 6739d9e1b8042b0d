// SPDX-License-Identifier: Apache-2.0
//
// The slow path of memory accesses: finding ranges, and naming the guilty lane.
#include "broker/cpudriver/ptx/execution.hpp"

namespace mpsshim::ptx {
namespace {

bool holds(const AddressRange& range, std::uint64_t address, std::uint32_t bytes, bool is_write) {
  return address >= range.begin && address < range.end && range.end - address >= bytes && (!is_write || range.is_writable);
}

}  // namespace

bool find_range(MemoryView& view, std::uint64_t address, std::uint32_t bytes, bool is_write) {
  for (const AddressRange& range : view.ranges) {
    if (holds(range, address, bytes, is_write)) return true;
  }
  const AddressRange found = view.map->find(address);
  if (!holds(found, address, bytes, is_write)) return false;
  view.ranges[view.victim] = found;
  view.victim = (view.victim + 1) % MemoryView::kCached;
  return true;
}

// Called from handlers/addresses.hpp.
bool check_lanes(Warp& warp, const Instruction& in, const std::uint64_t* address, std::uint32_t bytes, std::uint32_t alignment, bool is_write);
bool check_offsets(Warp& warp, const Instruction& in, const std::uint64_t* offset, std::uint32_t bytes, std::uint32_t alignment, std::uint64_t limit,
                   bool is_write);

bool check_lanes(Warp& warp, const Instruction& in, const std::uint64_t* address, std::uint32_t bytes, std::uint32_t alignment, bool is_write) {
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    const std::uint64_t a = address[__builtin_ctz(rest)];
    bool is_accessible = false;
    if (in.space == Space::none || in.space == Space::global) {
      for (const AddressRange& window : warp.windows) is_accessible |= holds(window, a, bytes, is_write);
    }
    if (!is_accessible && !find_range(*warp.view, a, bytes, is_write)) {
      raise(warp, Fault::illegal_address, in, a, is_write);
      return false;
    }
    if ((a & (alignment - 1)) != 0) {
      raise(warp, Fault::misaligned_address, in, a, is_write);
      return false;
    }
  }
  return true;
}

bool check_offsets(Warp& warp, const Instruction& in, const std::uint64_t* offset, std::uint32_t bytes, std::uint32_t alignment, std::uint64_t limit,
                   bool is_write) {
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    const std::uint64_t a = offset[__builtin_ctz(rest)];
    const bool fits = a < limit && limit - a >= bytes && !(in.space == Space::param && is_write);
    if (!fits || (a & (alignment - 1)) != 0) {
      raise(warp, fits ? Fault::misaligned_address : Fault::illegal_address, in, a, is_write);
      return false;
    }
  }
  return true;
}

}  // namespace mpsshim::ptx
