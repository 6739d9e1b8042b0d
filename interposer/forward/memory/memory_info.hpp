// SPDX-License-Identifier: Apache-2.0
// What cuMemGetInfo answers: of a client with a limit of device memory that limit, and what is left of it. Asks the executor; any thread, of a
// process with a session.
#pragma once

#include <cstdint>

#include "gen/cuda_api.hpp"

namespace mpsshim::interposer::forward {

struct MemoryInfo {
  CUresult error = CUDA_SUCCESS;  // the rest is 0 if there is one
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};
[[nodiscard]] MemoryInfo read_memory_info();

}  // namespace mpsshim::interposer::forward
