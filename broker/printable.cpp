// SPDX-License-Identifier: Apache-2.0
#include "broker/printable.hpp"

#include "broker/utf8.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::string_view kCut = "...";

// Of the character at the beginning of `text`, 1 to 4; 0: none that may be shown.
std::size_t shown_bytes(std::string_view text) {
  const Utf8Character character = first_character(text);
  return is_obeyed_by_terminals(character.code) ? 0 : character.bytes;
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
