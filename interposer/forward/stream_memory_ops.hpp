// SPDX-License-Identifier: Apache-2.0
// Memory operations as streams and graphs' nodes have them. Any thread; the session is open.
#pragma once

#include <span>

#include "gen/cuda_api.hpp"
#include "interposer/forward/streams.hpp"

namespace mpsshim::interposer::forward {

inline constexpr unsigned int kMostMemoryOperations = 256;

// CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED: what the driver says of one that cannot be done.
[[nodiscard]] CUresult check_memory_operations(std::span<const CUstreamBatchMemOpParams> operations);
// In the stream's order, which is all that a barrier among them asks for. They have been checked, and the stream does not capture.
[[nodiscard]] CUresult post_memory_operations(Stream& stream, std::span<const CUstreamBatchMemOpParams> operations);

}  // namespace mpsshim::interposer::forward
