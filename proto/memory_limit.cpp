// SPDX-License-Identifier: Apache-2.0
#include "proto/memory_limit.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>

namespace mpsshim::proto {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equals(std::string_view text, std::string_view small) {
  return text.size() == small.size() && std::equal(text.begin(), text.end(), small.begin(), [](char a, char b) { return lower(a) == b; });
}

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
bool uuid_begins(const DeviceFacts& device, std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr std::size_t kLongest = 36;
  if (text.empty() || text.size() > kLongest) return false;
  std::size_t digit = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (at == 8 || at == 13 || at == 18 || at == 23) {
      if (text[at] != '-') return false;
      continue;
    }
    const std::uint8_t byte = device.uuid[digit / 2];
    if (lower(text[at]) != kDigits[digit % 2 == 0 ? byte >> 4 : byte & 15]) return false;
    ++digit;
  }
  return true;
}

}  // namespace

std::optional<std::uint64_t> parse_memory_size(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number == 0) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.empty()) return std::nullopt;
  unsigned shift = 0;
  switch (lower(unit.front())) {
    case 'k': shift = 10; break;
    case 'm': shift = 20; break;
    case 'g': shift = 30; break;
    case 't': shift = 40; break;
    default: return std::nullopt;
  }
  unit.remove_prefix(1);
  if (!unit.empty() && !equals(unit, "b") && !equals(unit, "ib")) return std::nullopt;
  if (number > (std::numeric_limits<std::uint64_t>::max() >> shift)) return std::nullopt;
  return number << shift;
}

std::optional<std::uint32_t> device_named(const DriverFacts& facts, std::string_view text) {
  const std::uint32_t count = std::min<std::uint32_t>(facts.device_count, kMaxDevices);
  std::uint32_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error == std::errc() && end == text.data() + text.size()) return index < count ? std::optional(index) : std::nullopt;
  if (!text.starts_with("GPU-")) return std::nullopt;
  std::optional<std::uint32_t> found;
  for (std::uint32_t device = 0; device < count; ++device) {
    if (!uuid_begins(facts.device[device], text.substr(4))) continue;
    if (found) return std::nullopt;
    found = device;
  }
  return found;
}

MemoryLimitText parse_memory_limits(const DriverFacts& facts, std::string_view text) {
  MemoryLimitText parsed;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const std::size_t equals_sign = entry.find('=');
    const std::string_view name = entry.substr(0, equals_sign);
    const auto device = device_named(facts, name);
    const std::uint64_t bytes = equals_sign == std::string_view::npos ? 0 : parse_memory_size(entry.substr(equals_sign + 1)).value_or(0);
    if (name == kAllDevices && bytes != 0) {
      for (std::uint64_t& limit : parsed.limit_bytes) limit = lower_limit(limit, bytes);
      continue;
    }
    if (!device || bytes == 0) {
      if (parsed.wrong.empty()) parsed.wrong = entry.empty() ? std::string_view("(an empty entry)") : entry;
      continue;
    }
    parsed.limit_bytes[*device] = lower_limit(parsed.limit_bytes[*device], bytes);
  }
  return parsed;
}

}  // namespace mpsshim::proto
