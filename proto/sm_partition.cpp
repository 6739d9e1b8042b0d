// SPDX-License-Identifier: Apache-2.0
#include "proto/sm_partition.hpp"

#include <algorithm>
#include <charconv>

#include "proto/memory_limit.hpp"

namespace mpsshim::proto {

namespace {

constexpr std::size_t kLeastDigits = 7;
constexpr std::size_t kMostDigits = 9;

}  // namespace

std::string partition_text(std::uint32_t number) {
  const std::string digits = std::to_string(number);
  return 'P' + std::string(kLeastDigits - std::min(kLeastDigits, digits.size()), '0') + digits;
}

std::optional<std::uint32_t> parse_partition(std::string_view text) {
  if (!text.starts_with('P') || text.size() < 1 + kLeastDigits || text.size() > 1 + kMostDigits) return std::nullopt;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number != 0 ? std::optional(number) : std::nullopt;
}

bool are_partitions(std::string_view text) {
  for (;;) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, comma);
    const std::size_t slash = std::min(entry.find('/'), entry.size());
    if (slash == 0 || slash == entry.size() || !parse_partition(entry.substr(slash + 1))) return false;
    if (comma == text.size()) return true;
    text.remove_prefix(comma + 1);
  }
}

PartitionsText parse_partitions(const DriverFacts& facts, std::string_view text) {
  PartitionsText parsed;
  for (bool is_last = false; !is_last;) {
    const std::size_t comma = text.find(',');
    is_last = comma == std::string_view::npos;
    const std::string_view entry = text.substr(0, comma);
    text.remove_prefix(is_last ? text.size() : comma + 1);
    const std::size_t slash = std::min(entry.find('/'), entry.size());
    const auto device = device_named(facts, entry.substr(0, slash));
    const auto number = slash < entry.size() ? parse_partition(entry.substr(slash + 1)) : std::nullopt;
    if (device && number && parsed.partition[*device] == 0) {
      parsed.partition[*device] = *number;
    } else if (parsed.wrong.empty()) {
      parsed.wrong = entry.empty() ? std::string_view("(an empty entry)") : entry;
    }
  }
  return parsed;
}

}  // namespace mpsshim::proto
