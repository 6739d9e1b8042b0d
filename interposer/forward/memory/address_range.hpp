// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mpsshim::interposer::forward {

struct AddressRange {
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;

  [[nodiscard]] std::uint64_t end() const { return address + size_bytes; }
  // True if all of [first, first + bytes) lies in it; no sum here can overflow.
  [[nodiscard]] bool holds(std::uint64_t first, std::uint64_t bytes) const {
    return first >= address && first - address <= size_bytes && bytes <= size_bytes - (first - address);
  }
  bool operator==(const AddressRange&) const = default;
};

}  // namespace mpsshim::interposer::forward
