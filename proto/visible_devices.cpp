// SPDX-License-Identifier: Apache-2.0
#include "proto/visible_devices.hpp"

#include <algorithm>
#include <charconv>

namespace mpsshim::proto {

namespace {

constexpr std::string_view kUuidPrefix = "GPU-";

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Does the UUID begin with these hexadecimal digits? Dashes stand anywhere.
bool uuid_begins(const DeviceUuid& uuid, std::string_view digits) {
  std::size_t position = 0;
  for (const char c : digits) {
    if (c == '-') continue;
    const int digit = hex_digit(c);
    if (digit < 0 || position >= 2 * uuid.size()) return false;
    const int byte = uuid[position / 2];
    if (digit != (position % 2 == 0 ? byte >> 4 : byte & 0xf)) return false;
    ++position;
  }
  return position > 0;
}

// Index, or -1 if the entry names no device or several.
int find_device(std::span<const DeviceUuid> devices, std::string_view entry) {
  if (entry.substr(0, kUuidPrefix.size()) == kUuidPrefix) {
    int found = -1;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (!uuid_begins(devices[i], entry.substr(kUuidPrefix.size()))) continue;
      if (found >= 0) return -1;
      found = static_cast<int>(i);
    }
    return found;
  }
  std::uint32_t index = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error != std::errc{} || end != entry.data() + entry.size() || index >= devices.size()) return -1;
  return static_cast<int>(index);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

std::vector<std::uint32_t> select_devices(std::span<const DeviceUuid> devices, std::string_view list) {
  std::vector<std::uint32_t> selected;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const int device = find_device(devices, trimmed(list.substr(0, comma)));
    if (device < 0) break;
    const auto index = static_cast<std::uint32_t>(device);
    if (std::find(selected.begin(), selected.end(), index) != selected.end()) break;
    selected.push_back(index);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return selected;
}

}  // namespace mpsshim::proto
