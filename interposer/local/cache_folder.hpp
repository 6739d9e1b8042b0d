// SPDX-License-Identifier: Apache-2.0
// The folder of the compile cache, and how large it may become (CUDA C++ Programming Guide, "CUDA Environment Variables").
//
// It is `mpsshim-<uid>` in CUDA_CACHE_PATH, else in ~/.nv, where NVIDIA's own lies too (ComputeCache, which is not touched). Each user has a
// folder of his own there, so that a CUDA_CACHE_PATH may be everybody's. What is found in it is run on a GPU in the name of who finds it: the
// folder must be the user's, and nobody else may write into it.
//
// Variables are read anew for each entry: programs set them from inside. No state; any thread. Nothing here stays open between two calls, since
// some programs close descriptors that they do not know.
#pragma once

#include <cstdint>
#include <string>

#include "proto/segment.hpp"

namespace mpsshim::interposer {

inline constexpr std::uint64_t kDefaultCacheBytes = 1ull << 30;  // CUDA_CACHE_MAXSIZE's default on desktops and servers
inline constexpr std::uint64_t kMaxCacheBytes = 4ull << 30;      // and its largest value

struct CachePlace {
  std::string folder;           // empty: nothing is cached (CUDA_CACHE_DISABLE, or there is neither CUDA_CACHE_PATH nor HOME)
  std::uint64_t max_bytes = 0;  // on disk, of all entries together
};
[[nodiscard]] CachePlace cache_place();

enum class IfMissing : std::uint8_t { leave, make };

// Invalid where there is none, none can be made, or it is not one to trust (told under MPSSHIM_DEBUG=cache).
[[nodiscard]] proto::FileDescriptor open_cache_folder(const std::string& folder, IfMissing if_missing);

}  // namespace mpsshim::interposer
