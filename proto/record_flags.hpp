// SPDX-License-Identifier: Apache-2.0
// The bits of the records' `flags` (proto/spec/records.toml), as the interposer sets and the executor reads them.
#pragma once

#include <cstdint>

namespace mpsshim::proto {

inline constexpr std::uint32_t kLaunchIsCooperative = 1u << 0;      // LaunchRecord
inline constexpr std::uint32_t kLaunchIsMultiDevice = 1u << 2;      // LaunchRecord: by cuLaunchCooperativeKernelMultiDevice, on its one device
inline constexpr std::uint16_t kCopyComesBeforeAllLater = 1u << 0;  // CopyRecord, CopyBoxRecord: later work of every stream waits for the copy
inline constexpr std::uint32_t kLoadPlacesManaged = 1u << 0;        // ModuleLoadRecord::offers: proto/managed_variables.hpp
inline constexpr std::uint32_t kLoadHasObjects = 1u << 1;           // the image is linked, and the client has what it was linked of

}  // namespace mpsshim::proto
