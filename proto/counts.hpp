// SPDX-License-Identifier: Apache-2.0
// Arithmetic on lengths that came from a client.
#pragma once

#include <cstdint>
#include <limits>

namespace mpsshim::proto {

// a * b, or the largest number where that would wrap: no buffer and no range is so long, so every check refuses it.
constexpr std::uint64_t saturated_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::uint64_t>::max() : product;
}

}  // namespace mpsshim::proto
