// SPDX-License-Identifier: Apache-2.0
// Which launch attributes of a client reach the driver.
#pragma once

#include <cstddef>
#include <cstdint>

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

inline constexpr std::uint32_t kMaxLaunchAttributes = 32;

// `attributes`: `count` CUlaunchAttribute, unaligned, in private memory. CUDA_SUCCESS, or why the call is refused.
[[nodiscard]] CUresult check_launch_attributes(const std::byte* attributes, std::uint32_t count);

}  // namespace mpsshim::broker
