// SPDX-License-Identifier: Apache-2.0
// What the operating system and nvidia-smi say about processes and the device.
#pragma once

#include <optional>
#include <vector>

#include <sys/types.h>

namespace mpsshim::bench {

[[nodiscard]] double device_memory_used_mib();  // of device 0, by nvidia-smi; throws Failure without it
[[nodiscard]] std::vector<pid_t> with_descendants(pid_t root);

// What the executors of this broker have issued for the clients that are attached, by the table that they keep of it; nothing where that is out
// of reach. The counts are those of the streams in use: they fall when a client leaves.
struct LaunchCounts {
  double launches = 0, chained = 0;
};
[[nodiscard]] std::optional<LaunchCounts> launch_counts(pid_t broker);

[[nodiscard]] unsigned usable_cores(pid_t process);                           // by its affinity; 0: this process, or none
[[nodiscard]] double processor_seconds(const std::vector<pid_t>& processes);  // used so far by all their threads

}  // namespace mpsshim::bench
