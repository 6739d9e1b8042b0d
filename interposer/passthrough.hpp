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

// cuGetExportTable's arguments: true, with a table that is not NULL, if another copy asks (proto/own_library.hpp), or the shadow of the management
// library (proto/management_table.hpp). Nothing is settled by it.
[[nodiscard]] bool is_self_query(const void** table, const CUuuid* id);

}  // namespace mpsshim::interposer
