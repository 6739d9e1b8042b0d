// SPDX-License-Identifier: Apache-2.0
// The bits of the records' `flags` (proto/spec/records.toml), as the interposer sets and the executor reads them.
#pragma once

#include <cstdint>

namespace mpsshim::proto {

inline constexpr std::uint32_t kLaunchIsCooperative = 1u << 0;      // LaunchRecord
inline constexpr std::uint16_t kCopyComesBeforeAllLater = 1u << 0;  // CopyRecord, CopyBoxRecord: later work of every stream waits for the copy

}  // namespace mpsshim::proto
