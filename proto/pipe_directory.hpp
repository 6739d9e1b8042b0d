// SPDX-License-Identifier: Apache-2.0
// Where broker and programs meet: the one order in which all tools, the client library among them, look for a broker's directory.
//
//   named        --pipe-dir, or $CUDA_MPS_PIPE_DIRECTORY: that one alone
//   of the user  $XDG_RUNTIME_DIR/mpsshim, /run/user/<uid>/mpsshim, /tmp/mpsshim-<uid>
//   of root      /run/mpsshim, for all users of the machine
//   compatible   /tmp/nvidia-mps, where a broker listens that was started by NVIDIA's name, and /run/nvidia-mps, the default of its version 3
//
// A program takes the first in which a broker of its own user or of root answers, where none is named. A broker that is started makes the one that
// is named, else its user's first, root's /run/mpsshim.
// Nothing is read but what is given, so that the client library decides itself which variables it may trust.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace mpsshim::proto {

inline constexpr char kSystemPipeDirectory[] = "/run/mpsshim";
inline constexpr char kCompatiblePipeDirectory[] = "/tmp/nvidia-mps";
inline constexpr char kCompatibleRunDirectory[] = "/run/nvidia-mps";

struct PipeDirectoryHints {
  std::string_view named;    // empty: none is
  std::string_view runtime;  // $XDG_RUNTIME_DIR
  uid_t user = 0;
};

// At least one, the most likely first; each once.
[[nodiscard]] std::vector<std::string> directories_to_search(const PipeDirectoryHints& hints);
[[nodiscard]] std::string directory_to_make(const PipeDirectoryHints& hints);

}  // namespace mpsshim::proto
