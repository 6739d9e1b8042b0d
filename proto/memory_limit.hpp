// SPDX-License-Identifier: Apache-2.0
// Limits of device memory as people write them: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT ("0=1G,GPU-cb12=512MB") and the commands of the manual's
// ("Volta MPS Device Memory Limit"). Sizes are powers of 1024: an integer with K, M, G or T, and B or iB behind it or not, in any case.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "proto/device_facts.hpp"

namespace mpsshim::proto {

// nullopt: it is no size, is 0, or is too large for a number of bytes.
[[nodiscard]] std::optional<std::uint64_t> parse_memory_size(std::string_view text);
// Ordinal in `facts` of the device that `text` names by its index, or by "GPU-" and any unambiguous beginning of its UUID.
[[nodiscard]] std::optional<std::uint32_t> device_named(const DriverFacts& facts, std::string_view text);

// "all=4G": each device. mpsrun says it (--mem), which need not know how many there are.
inline constexpr std::string_view kAllDevices = "all";

struct MemoryLimitText {
  std::uint64_t limit_bytes[kMaxDevices] = {};  // 0: none
  std::string_view wrong{};                     // the first entry that is no limit, or names no device; empty: all are well
};
// What is wrong changes nothing; the rest holds. Where a device is named twice the lower one holds.
[[nodiscard]] MemoryLimitText parse_memory_limits(const DriverFacts& facts, std::string_view text);

// The stricter one, where 0 is none.
[[nodiscard]] constexpr std::uint64_t lower_limit(std::uint64_t a, std::uint64_t b) { return a == 0 || (b != 0 && b < a) ? b : a; }

}  // namespace mpsshim::proto
