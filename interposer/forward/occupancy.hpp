// SPDX-License-Identifier: Apache-2.0
// Occupancy: the executor's driver calculates, each answer is asked for once (libraries ask the same again before every launch).
#pragma once

#include <cstddef>

#include "gen/cuda_api.hpp"
#include "interposer/forward/functions.hpp"

namespace mpsshim::interposer::forward {

// As cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags. Any thread.
[[nodiscard]] CUresult max_active_blocks(Function& function, int block_size, std::size_t shared_bytes, unsigned int flags, int& blocks);

}  // namespace mpsshim::interposer::forward
