// SPDX-License-Identifier: Apache-2.0
// Bytes of strangers as characters: which belong together, and which of them a terminal would obey. Pure functions; any bytes may come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mpsshim::broker {

struct Utf8Character {
  std::size_t bytes = 0;  // 1 to 4; 0: `text` does not begin with a character
  std::uint32_t code = 0;
};

// The character at the beginning of `text`, which is not empty. What is written longer than it need be, and halves of surrogate pairs, are none.
[[nodiscard]] inline Utf8Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {1, first};
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return {};
  std::uint32_t code = first & (0x7fu >> length);
  for (std::size_t at = 1; at < length; ++at) {
    if ((byte(at) & 0xc0u) != 0x80) return {};
    code = code << 6 | (byte(at) & 0x3fu);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool is_character = code >= kLeast[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return is_character ? Utf8Character{length, code} : Utf8Character{};
}

// Control characters, ends of lines, and what turns the direction of writing. All are below 0x10000.
[[nodiscard]] inline bool is_obeyed_by_terminals(std::uint32_t code) {
  const bool is_control = code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e || code == 0x200f;
  return is_control || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace mpsshim::broker
