// SPDX-License-Identifier: Apache-2.0
//
// bar and barrier: see barrier.cpp. Called by the thread that executes the block.
#pragma once

#include "broker/cpudriver/ptx/execution.hpp"

namespace mpsshim::ptx {

enum class BarrierKind : std::uint8_t { sync, arrive, red_popc, red_and, red_or };

Flow barrier(Warp& warp, const Instruction& in);
Flow cluster_arrive(Warp& warp, const Instruction& in);
Flow cluster_wait(Warp& warp, const Instruction& in);

}  // namespace mpsshim::ptx
