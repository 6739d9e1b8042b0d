// SPDX-License-Identifier: Apache-2.0
// Which broker an mpsrun uses: where it looks, and where it makes one if there is none. A function of the options and the environment.
//
// Whoever names a directory gets that one. Else the order of proto/pipe_directory.hpp holds, with a batch system's job before it: what a step of
// Slurm starts is killed with the step, so a broker that a step has started is the step's own ("step-<job>.<step>"), and one for all steps is started
// by the job itself (--job, "job-<job>"), or by a prologue in /run/mpsshim.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mpsshim::broker::run {

using Environment = std::function<std::string(const char* name)>;  // "": not set

struct Place {
  std::vector<std::string> search;
  std::string make;
  bool is_named = false;
};

// `base`: the directory a broker of this user makes, and `usual`: those that it may be found in (control/base/pipe_directory.hpp).
// nullopt: --job, and there is no job.
[[nodiscard]] std::optional<Place> choose_place(const std::string& option, bool for_job, const Environment& environment, const std::string& base,
                                                const std::vector<std::string>& usual);

}  // namespace mpsshim::broker::run
