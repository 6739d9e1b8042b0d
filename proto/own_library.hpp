// SPDX-License-Identifier: Apache-2.0
// How libmpsshim.so is told from the driver whose name it has: by whoever looks for the driver, a client without a broker and the executor.
#pragma once

#include <array>

namespace mpsshim::proto {

// The name of its file; libcuda.so and libcuda.so.1 are links to it (interposer/CMakeLists.txt).
inline constexpr char kOwnLibraryFile[] = "libmpsshim.so";

// cuGetExportTable of any copy of it knows this id and answers CUDA_SUCCESS, before it settles anything. The id is the project's own (a random
// UUID); NVIDIA's driver answers CUDA_ERROR_INVALID_VALUE.
inline constexpr std::array<char, 16> kOwnTableId = {'\x5e', '\x4d', '\x1c', '\x3a', '\x0f', '\x6b', '\x4e', '\x2d',
                                                     '\x9a', '\x77', '\x2b', '\x90', '\x61', '\x3c', '\x58', '\x01'};

}  // namespace mpsshim::proto
