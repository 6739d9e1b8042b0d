// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mpsshim::bench {

// The life of a worker process: maps the stage from this descriptor, brings up its device, carries out orders until told to leave.
// Returns the exit status.
int run_worker(int stage_fd, unsigned slot);

}  // namespace mpsshim::bench
