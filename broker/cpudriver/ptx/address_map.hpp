// SPDX-License-Identifier: Apache-2.0
//
// What kernels may touch. The caller of the engine owns the map; device memory is ordinary memory of this
// process at the address that kernels see. The engine asks from all its threads at once, and caches answers
// per thread until generation() changes.
//
// The caller promises: a range stays mapped (and, if so answered, writable) while any launch that began before
// its removal still runs. Adding or removing a range increments generation() afterwards.
#pragma once

#include <cstdint>

namespace mpsshim::ptx {

struct AddressRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // Exclusive. begin == end: nothing accessible here.
  bool is_writable = false;
};

class AddressMap {
 public:
  virtual ~AddressMap() = default;

  // The accessible range that contains `address`, or an empty one. Adjacent allocations need not be joined,
  // but no single access crosses from one range into the next.
  [[nodiscard]] virtual AddressRange find(std::uint64_t address) const = 0;

  // A number that changes whenever an earlier answer of find() may have become wrong.
  [[nodiscard]] virtual std::uint64_t generation() const = 0;
};

}  // namespace mpsshim::ptx
