// SPDX-License-Identifier: Apache-2.0
// The measures that one process makes of itself. Each returns one figure, in the unit its entry names, after checking that the work was done.
#pragma once

#include <span>

namespace mpsshim::bench {

struct Measure {
  const char* name;         // for the command line
  const char* what;         // for the table
  const char* unit;
  bool larger_is_better;
  double (*run)();
};

[[nodiscard]] std::span<const Measure> measures();

// From now on (steady clock) to the moment that a bystander's launch, posted 10 ms after another process's fault, is done. Microseconds.
// Forks: must be called before any CUDA call. Returns a negative value and says why on standard error if the bystander did not survive.
[[nodiscard]] double fault_to_bystander_us();

}  // namespace mpsshim::bench
