// SPDX-License-Identifier: Apache-2.0
// Static partitions of a device's multiprocessors (docs/execution.md), as people name them: "GPU-cb1213a3-…/P0000001", a device by its index or by
// "GPU-" and any unambiguous beginning of its UUID, and the partition's number there. The control process gives numbers and never one twice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/device_facts.hpp"

namespace mpsshim::proto {

// Of one device: a bit each. Devices are cut into fewer (proto::partition_unit): an H100 into 16, the largest that there is into 40.
inline constexpr unsigned kMostChunks = 63;
// The last bit: what the driver's split leaves over, 4 multiprocessors of most H100.
inline constexpr unsigned kRemainderChunk = kMostChunks;
inline constexpr std::uint64_t kRemainderBit = std::uint64_t{1} << kRemainderChunk;
// Those of a device that is cut into so many.
[[nodiscard]] constexpr std::uint64_t first_chunks(unsigned count) { return (std::uint64_t{1} << (count < kMostChunks ? count : kMostChunks)) - 1; }

// "P0000001"
[[nodiscard]] std::string partition_text(std::uint32_t number);
// nullopt: it is none.
[[nodiscard]] std::optional<std::uint32_t> parse_partition(std::string_view text);

// Whether it is a list of "DEVICE/P0000001", of whatever devices: for who does not know them.
[[nodiscard]] bool are_partitions(std::string_view text);

// CUDA_MPS_SM_PARTITION: one of each device at most, by commas.
struct PartitionsText {
  std::uint32_t partition[kMaxDevices] = {};  // numbers; 0: none
  std::string_view wrong{};                   // the first entry that names no device of the broker's, or no number; empty: all are well
};
[[nodiscard]] PartitionsText parse_partitions(const DriverFacts& facts, std::string_view text);

}  // namespace mpsshim::proto
