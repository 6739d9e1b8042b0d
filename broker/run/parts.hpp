// SPDX-License-Identifier: Apache-2.0
// What mpsrun gives its program and its broker: the files that lie beside it, in a build tree as in an installed one, and the environments.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace mpsshim::broker::run {

struct Parts {
  std::string broker;         // mpsbroker
  std::string library;        // libmpsshim.so
  std::string management_library;  // libmpsshim-nvml.so
  std::string driver_folder;       // with nothing but names of NVIDIA's
};
// nullopt: `why` is a sentence.
[[nodiscard]] std::optional<Parts> find_parts(std::string& why);

// Sets LD_PRELOAD, LD_LIBRARY_PATH, MPSSHIM_REQUIRE (unless it is set) and CUDA_MPS_PIPE_DIRECTORY of this process, which is about to be the program.
// Nothing is there twice where an mpsrun is in an mpsrun.
void prepare_program(const Parts& parts, const std::string& pipe_dir);

// Of ours what is for a broker that serves others, too: where to find things, and who this is. Nothing of a launcher's, a batch system's or this
// program's own (its devices, limits and libraries).
[[nodiscard]] std::vector<std::string> broker_environment();

// For tests of their rules. PATH with `entry` in front and nowhere else; the rest, empty entries included, stays as it is.
[[nodiscard]] std::string with_first(const std::string& entry, const std::string& path);
// A list of LD_PRELOAD with `library`; its names are divided by spaces as well.
[[nodiscard]] std::string with_preloaded(const std::string& library, const std::string& list);

}  // namespace mpsshim::broker::run
