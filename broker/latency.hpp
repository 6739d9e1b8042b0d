// SPDX-License-Identifier: Apache-2.0
// What the broker is asked to favour where clients wait (--latency): processors, or the time until they hear of the end.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mpsshim::broker {

enum class Latency : std::uint8_t { saving, balanced, low };
inline constexpr std::array<const char*, 3> kLatencyWords{"saving", "balanced", "low"};  // by number

[[nodiscard]] inline std::optional<Latency> parse_latency(std::string_view word) {
  const auto* const found = std::ranges::find(kLatencyWords, word);
  if (found == kLatencyWords.end()) return std::nullopt;
  return static_cast<Latency>(found - kLatencyWords.begin());
}
[[nodiscard]] inline const char* latency_word(Latency latency) { return kLatencyWords[static_cast<std::size_t>(latency)]; }

}  // namespace mpsshim::broker
