// SPDX-License-Identifier: Apache-2.0
// What is favoured where clients wait for the GPU: processors, or the time until they hear of the end. Said for all by who runs the broker
// (mpsbroker --latency), and for itself by a program, whose threads' cores are its own (MPSSHIM_LATENCY, mpsrun --latency).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mpsshim::proto {

enum class Latency : std::uint8_t { saving, balanced, low };
inline constexpr std::array<const char*, 3> kLatencyWords{"saving", "balanced", "low"};  // by number

[[nodiscard]] inline std::optional<Latency> parse_latency(std::string_view word) {
  const auto* const found = std::ranges::find(kLatencyWords, word);
  if (found == kLatencyWords.end()) return std::nullopt;
  return static_cast<Latency>(found - kLatencyWords.begin());
}
[[nodiscard]] inline const char* latency_word(Latency latency) { return kLatencyWords[static_cast<std::size_t>(latency)]; }

// So long a wait may stay awake, looking again and again.
inline constexpr std::uint32_t kLowAwakeUs = 1'000'000;
// The same of a program that asks for `own` where the broker says `told_us`. Balanced: as it says.
[[nodiscard]] constexpr std::uint32_t awake_limit_us(Latency own, std::uint32_t told_us) {
  if (own == Latency::balanced) return told_us;
  return own == Latency::low ? std::max(told_us, kLowAwakeUs) : 0;
}

}  // namespace mpsshim::proto
