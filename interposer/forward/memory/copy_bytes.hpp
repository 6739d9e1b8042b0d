// SPDX-License-Identifier: Apache-2.0
// How bytes are copied. Any thread; the ranges do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mpsshim::interposer::forward {

enum class Caching : std::uint8_t {
  usual,
  past,  // the destination goes past the caches: nearly twice as fast for much data that is read late (docs/experiments/2026-11-21-copies.md)
};

void copy_bytes(std::byte* to, const std::byte* from, std::size_t size_bytes, Caching caching);

}  // namespace mpsshim::interposer::forward
