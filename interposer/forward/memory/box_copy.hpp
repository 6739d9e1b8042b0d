// SPDX-License-Identifier: Apache-2.0
// Two- and three-dimensional copies between linear memories. A box is rows of bytes, rows in slices; a side says where its first byte lies and
// how far rows and slices are apart. Boxes that are one run of bytes become one-dimensional copies.
#pragma once

#include <cstdint>
#include <optional>

#include "interposer/forward/memory/copy.hpp"

namespace mpsshim::interposer::forward {

struct BoxSize {
  std::uint64_t width = 0;  // bytes
  std::uint64_t height = 0;
  std::uint64_t depth = 0;

  [[nodiscard]] bool is_empty() const { return width == 0 || height == 0 || depth == 0; }
};

struct BoxSide {
  std::uint64_t address = 0;  // of the first byte that is copied
  Named named = Named::by_address;
  std::uint64_t pitch = 0;  // bytes from row to row
  std::uint64_t rows = 0;   // rows from slice to slice

  [[nodiscard]] std::uint64_t row(std::uint64_t y, std::uint64_t z) const { return address + (z * rows + y) * pitch; }
  // Bytes from the first to the last one that is copied; nothing if they do not fit an address space.
  [[nodiscard]] std::optional<std::uint64_t> extent(const BoxSize& size) const;
};

struct BoxCopy {
  BoxSide destination;
  BoxSide source;
  BoxSize size;
};

[[nodiscard]] CUresult copy_box(Stream& stream, BoxCopy box, Completion completion);
// Any copy that cuMemcpy3D may describe, arrays as well.
[[nodiscard]] CUresult copy_volume(Stream& stream, const CUDA_MEMCPY3D& description, Completion completion);

}  // namespace mpsshim::interposer::forward
