// SPDX-License-Identifier: Apache-2.0
//
// Whether an image has a shape that compilers give their output, before a driver is asked to read it. Bounds and references only: what code
// means nobody can say. Each function gives the empty string, or what is wrong as the end of "the image is refused: ".
// The bytes are not trusted.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace mpsshim::image {

// A cubin: tables, sections, segments and what they name lie within the file.
[[nodiscard]] std::string what_is_wrong_with_elf(std::span<const std::byte> file);

inline constexpr std::size_t kMaxPtxBytes = std::size_t{512} << 20;  // the largest text of NVIDIA's libraries has 80 MiB
inline constexpr std::size_t kMaxPtxDepth = 256;                     // of braces, brackets and parentheses; compilers nest a dozen
inline constexpr std::size_t kMaxPtxWordBytes = std::size_t{1} << 20;

// Size, nesting, length of words. The text need not end with a NUL.
[[nodiscard]] std::string what_is_wrong_with_ptx(std::string_view text);

}  // namespace mpsshim::image
