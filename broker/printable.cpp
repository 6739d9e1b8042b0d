// SPDX-License-Identifier: Apache-2.0
#include "broker/printable.hpp"

#include <array>
#include <cstdint>

namespace mpsshim::broker {

namespace {

constexpr std::string_view kCut = "...";

// Of the character at the beginning of `text`, 1 to 4; 0: none that may be shown.
std::size_t shown_bytes(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  std::uint32_t code = first & (0x7fu >> length);
  for (std::size_t at = 1; at < length; ++at) {
    if ((byte(at) & 0xc0u) != 0x80) return 0;
    code = code << 6 | (byte(at) & 0x3fu);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool is_character = code >= kLeast[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  const bool is_control = code < 0xa0 || code == 0x61c || code == 0x200e || code == 0x200f;
  const bool ends_or_turns = (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return is_character && !is_control && !ends_or_turns ? length : 0;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  while (!text.empty()) {
    const std::size_t bytes = shown_bytes(text);
    if (shown.size() + 4 > kLongestLogLine) return shown.append(kCut);
    if (bytes != 0) {
      shown.append(text.substr(0, bytes));
    } else {
      const auto byte = static_cast<unsigned char>(text[0]);
      shown.append({'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15u]});
    }
    text.remove_prefix(bytes != 0 ? bytes : 1);
  }
  return shown;
}

}  // namespace mpsshim::broker
