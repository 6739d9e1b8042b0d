// SPDX-License-Identifier: Apache-2.0
// Where a library of NVIDIA's may lie whose name a library of ours has: paths, since the loader would find ours by the name. Any thread; nothing is
// loaded and nothing kept.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::interposer {

// In this order: the directories of `library_path` (LD_LIBRARY_PATH), those of the loader's cache, the usual ones. Not all of them exist.
[[nodiscard]] std::vector<std::string> library_candidates(std::string_view name, std::string_view library_path);

}  // namespace mpsshim::interposer
