// SPDX-License-Identifier: Apache-2.0
// Which libraries --driver means, in the order in which executors try them. Nothing is loaded here: whether a library serves is what an executor
// reports when it has tried.
#pragma once

#include <string>
#include <vector>

namespace mpsshim::broker::control {

// `choice`: auto (the system's driver, else the CPU driver), cuda, cpu, or a path. Empty if there is nothing to try.
[[nodiscard]] std::vector<std::string> drivers_to_try(const std::string& choice);

// By the name of its file.
[[nodiscard]] bool is_cpu_driver(const std::string& path);

}  // namespace mpsshim::broker::control
