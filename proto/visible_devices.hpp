// SPDX-License-Identifier: Apache-2.0
// Which devices CUDA_VISIBLE_DEVICES names, by NVIDIA's rules (CUDA Programming Guide, "Environment Variables"). No state.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace mpsshim::proto {

using DeviceUuid = std::array<std::uint8_t, 16>;

// Indices of `devices` in the order of `list`. An index or a UUID (GPU-…, any unambiguous beginning) each; the first entry that names no device, or
// one already named, ends the list.
[[nodiscard]] std::vector<std::uint32_t> select_devices(std::span<const DeviceUuid> devices, std::string_view list);

}  // namespace mpsshim::proto
