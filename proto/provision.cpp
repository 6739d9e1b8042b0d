// SPDX-License-Identifier: Apache-2.0
#include "proto/provision.hpp"

#include <cstddef>

namespace mpsshim::proto {

namespace {

bool are_digits(std::string_view text, std::size_t most) {
  return !text.empty() && text.size() <= most && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::uint32_t number(std::string_view digits) {
  std::uint32_t value = 0;
  for (const char digit : digits) value = value * 10 + static_cast<std::uint32_t>(digit - '0');
  return value;
}

}  // namespace

// By hand: what the library takes depends on the language that is set.
std::optional<std::uint32_t> parse_percentage(std::string_view text) {
  const std::size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view part = point == std::string_view::npos ? "0" : text.substr(point + 1);
  if (!are_digits(whole, 3) || !are_digits(part, 2)) return std::nullopt;
  const std::uint32_t value = number(whole) * 100 + number(part) * (part.size() == 1 ? 10 : 1);
  return value == 0 || value > kWholePercentage ? std::nullopt : std::optional(value);
}

std::optional<std::vector<std::uint32_t>> parse_percentages(std::string_view text) {
  std::vector<std::uint32_t> percentages;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::optional<std::uint32_t> percentage = parse_percentage(text.substr(0, comma));
    if (!percentage || *percentage == kWholePercentage || comma + 1 == text.size()) return std::nullopt;
    percentages.push_back(*percentage);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return percentages;
}

std::optional<std::uint32_t> parse_client_priority(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] >= static_cast<char>('0' + kMostClientPriorities)) return std::nullopt;
  return static_cast<std::uint32_t>(text[0] - '0');
}

std::optional<std::string> parse_group(std::string_view text) {
  constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  const bool is_name = !text.empty() && text.size() <= kMostGroupName && text.find_first_not_of(kCharacters) == std::string_view::npos;
  return is_name ? std::optional(std::string(text)) : std::nullopt;
}

std::string percentage_text(std::uint32_t percentage) {
  std::string text = std::to_string(percentage / 100) + '.' + std::to_string(percentage / 10 % 10);
  if (percentage % 10 != 0) text += std::to_string(percentage % 10);
  return text;
}

}  // namespace mpsshim::proto
