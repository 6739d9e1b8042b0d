// SPDX-License-Identifier: Apache-2.0
// Threads that all clients wait for (workers, completion, window, fault watch) come before other programs on busy processors: each of them does what
// is asked of it in microseconds, and the scheduler's slice of somebody else, some milliseconds, would be added to it. Helpers, and what the driver
// has of threads, are as everybody else. mpsbroker --priority; the control process raises the limit where it may (broker/rights/rights.hpp).
//
// And they ask for the shortest slices there are, which any thread may: Linux 6.12 and later then let a thread that wakes up run before one whose
// slice ends later (docs/experiments/2026-11-26-short-slices.md). Older kernels change nothing.
#pragma once

#include <cstdint>

namespace mpsshim::broker {

inline constexpr std::uint64_t kServingSliceNs = 100'000;

// Before such a thread is made; 0: they are as other programs'.
void set_serving_priority(unsigned priority);
// Of the calling thread, from now on; where it is not allowed, nothing changes.
void serve_before_others();

}  // namespace mpsshim::broker
