// SPDX-License-Identifier: Apache-2.0
// What part of a device a client may have, and how urgent its work is, as people write it: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,
// CUDA_MPS_CLIENT_PRIORITY and the commands of the manual's ("Volta MPS Execution Resource Provisioning", "Client Priority Level Control"). And how
// many multiprocessors that is, which library and executor reckon by themselves, alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::proto {

// The first driver with green contexts, by which percentages are enforced.
inline constexpr int kFirstDriverWithShares = 12'040;

// Percentages are in hundredths of a percent, 1 to this: all of the device.
inline constexpr std::uint32_t kWholePercentage = 10'000;

// "25", "33.3", "12.25": above 0, up to 100, two digits behind the point at most. nullopt: it is none.
[[nodiscard]] std::optional<std::uint32_t> parse_percentage(std::string_view text);
// Some of them, by commas, each below 100: "25,50". Empty: none. nullopt: it is no such list.
[[nodiscard]] std::optional<std::vector<std::uint32_t>> parse_percentages(std::string_view text);
// "25.0", "12.25"
[[nodiscard]] std::string percentage_text(std::uint32_t percentage);

// CUDA_MPS_CLIENT_PRIORITY and set_default_client_priority: 0 is normal, each higher one below the one before. So many there are at most; a broker
// has two, unless it is told to have more (mpsbroker --client-priorities). nullopt: it is none.
inline constexpr unsigned kMostClientPriorities = 4;
[[nodiscard]] std::optional<std::uint32_t> parse_client_priority(std::string_view text);

// A group of clients, as MPSSHIM_GROUP and the commands of namespaces name it: lowercase letters, digits and underscores, 64 at most. "default" is
// the one that has no limits.
inline constexpr std::size_t kMostGroupName = 64;
[[nodiscard]] std::optional<std::string> parse_group(std::string_view text);

// The stricter one, where 0 is none.
[[nodiscard]] constexpr std::uint32_t lower_percentage(std::uint32_t a, std::uint32_t b) { return a == 0 || (b != 0 && b < a) ? b : a; }

// The fewest multiprocessors that a green context may have, by the major compute capability (CUDA Driver API manual, cuDevSmResourceSplitByCount).
// Parts of the device are made of so many each, and share no multiprocessor.
[[nodiscard]] constexpr std::uint32_t partition_unit(int compute_major) { return compute_major >= 9 ? 8 : compute_major == 8 ? 4 : 2; }

// In how many such parts of a device with `all` multiprocessors a client of less than 100 % runs: rounded down, but never none. 0: it has all.
[[nodiscard]] constexpr std::uint32_t partition_units(std::uint32_t all, int compute_major, std::uint32_t percentage) {
  const std::uint32_t unit = partition_unit(compute_major);
  if (percentage == 0 || percentage >= kWholePercentage || all <= unit) return 0;
  const auto allowed = static_cast<std::uint32_t>(std::uint64_t{all} * percentage / kWholePercentage);
  return std::max<std::uint32_t>(allowed / unit, 1);
}

// What such a client's CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT says.
[[nodiscard]] constexpr std::uint32_t provisioned_multiprocessors(std::uint32_t all, int compute_major, std::uint32_t percentage) {
  const std::uint32_t units = partition_units(all, compute_major, percentage);
  return units == 0 ? all : units * partition_unit(compute_major);
}

static_assert(provisioned_multiprocessors(132, 9, 2'500) == 32 && provisioned_multiprocessors(132, 9, 10) == 8);
static_assert(provisioned_multiprocessors(108, 8, 5'000) == 52 && provisioned_multiprocessors(80, 7, 9'900) == 78);

}  // namespace mpsshim::proto
