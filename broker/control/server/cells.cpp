// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/cells.hpp"

#include <fmt/format.h>

#include "proto/provision.hpp"

namespace mpsshim::broker::control {

std::string uuid_text(const proto::DeviceFacts& device) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof device.uuid; ++i) {
    text += fmt::format("{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", device.uuid[i]);
  }
  return text;
}

Cell uuid(const proto::DriverFacts* facts, unsigned device) {
  constexpr std::size_t kShown = 22;
  if (facts == nullptr) return {nullptr, std::to_string(device)};
  const std::string text = uuid_text(facts->device[device]);
  return {text, text.substr(0, kShown)};
}

// The manual has no word for the size without a limit.
std::string size_text(std::uint64_t bytes) {
  if (bytes == 0) return "no limit";
  if (bytes % (1ull << 30) == 0) return fmt::format("{}G", bytes >> 30);
  return bytes % (1ull << 20) == 0 ? fmt::format("{}M", bytes >> 20) : fmt::format("{}K", bytes >> 10);
}

Cell percent(std::uint32_t hundredths) { return {Decimal{proto::percentage_text(hundredths)}}; }

std::string age_text(std::chrono::milliseconds age) {
  const auto seconds = age.count() / 1'000;
  const auto minutes = seconds / 60, hours = minutes / 60, days = hours / 24;
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, seconds % 60);
  if (hours < 24) return fmt::format("{}:{:02}:{:02}", hours, minutes % 60, seconds % 60);
  return fmt::format("{}d {:02}:{:02}", days, hours % 24, minutes % 60);
}

}  // namespace mpsshim::broker::control
