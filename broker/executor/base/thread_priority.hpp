// SPDX-License-Identifier: Apache-2.0
// Threads that all clients wait for (workers, completion, window, fault watch) come before other programs on busy processors: each of them does what
// is asked of it in microseconds, and the scheduler's slice of somebody else, some milliseconds, would be added to it. Helpers, and what the driver
// has of threads, are as everybody else. mpsbroker --priority; the control process raises the limit where it may (broker/rights/rights.hpp).
#pragma once

namespace mpsshim::broker {

// Before such a thread is made; 0: they are as other programs'.
void set_serving_priority(unsigned priority);
// Of the calling thread, from now on; where it is not allowed, nothing changes.
void serve_before_others();

}  // namespace mpsshim::broker
