// SPDX-License-Identifier: Apache-2.0
// The undocumented function tables that cuGetExportTable hands out (docs/undocumented-tables.md says which are answered, and why).
//
// A table is an array of 8-byte words in constant memory, the first of them its size in bytes. Callers neither check the size nor look for
// null, so every table has its full length and each slot without a meaning here answers CUDA_ERROR_NOT_SUPPORTED. Any thread, at any time:
// slots are called without passing through entry.hpp, so each guards itself.
#pragma once

#include "gen/cuda_api.hpp"

namespace mpsshim::interposer {

// Null if the table is not answered.
[[nodiscard]] const void* find_export_table(const CUuuid& id);

}  // namespace mpsshim::interposer
