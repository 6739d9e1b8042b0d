// SPDX-License-Identifier: Apache-2.0
// The real driver, for processes without a broker: found by path, never this library itself or another copy of it.
//
// Searched, in this order: MPSSHIM_REAL_DRIVER; libcuda.so.1 in the directories of LD_LIBRARY_PATH; in the loader's cache; in the usual
// places. load_real_driver() is called once, while settling; afterwards the table is read without a lock. The driver is never unloaded.
#pragma once

#include "gen/driver_table.hpp"

namespace mpsshim::interposer {

// True if a driver was found and its functions are in real_driver(). Says in one line where it has looked if MPSSHIM_REAL_DRIVER is no driver.
[[nodiscard]] bool load_real_driver();

// A pointer is null where that driver lacks the function.
[[nodiscard]] const DriverTable& real_driver();
[[nodiscard]] const char* real_driver_path();

// By this id cuGetExportTable of any copy of this library knows that another copy asks, and answers before it settles anything.
// It is the project's own (a random UUID); NVIDIA's driver answers CUDA_ERROR_INVALID_VALUE.
inline constexpr CUuuid kSelfTableId = {
    {'\x5e', '\x4d', '\x1c', '\x3a', '\x0f', '\x6b', '\x4e', '\x2d', '\x9a', '\x77', '\x2b', '\x90', '\x61', '\x3c', '\x58', '\x01'}};

// cuGetExportTable's arguments: true, with a table that is not NULL, if another copy asks.
[[nodiscard]] bool is_self_query(const void** table, const CUuuid* id);

}  // namespace mpsshim::interposer
