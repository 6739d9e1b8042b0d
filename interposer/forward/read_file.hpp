// SPDX-License-Identifier: Apache-2.0
// A whole file, by the C library: streams would be set up when the program loads this library.
#pragma once

#include <cstddef>
#include <vector>

namespace mpsshim::interposer::forward {

// Appends to `content`. False: errno says why.
[[nodiscard]] bool read_file(const char* path, std::vector<std::byte>& content);

}  // namespace mpsshim::interposer::forward
