// SPDX-License-Identifier: Apache-2.0
// MPSSHIM_LATENCY: how this process's threads wait for the GPU.
#pragma once

#include "proto/latency.hpp"

namespace mpsshim::interposer {

// Read once; balanced where it is not set.
[[nodiscard]] proto::Latency own_latency();

}  // namespace mpsshim::interposer
