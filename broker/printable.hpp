// SPDX-License-Identifier: Apache-2.0
// What strangers have named (programs, paths, kernels, what drivers say of their images) as it may stand in a log: one line, with no character that
// a terminal obeys. write_log() and write_server_log() pass every line through this, so no caller can forget it.
#pragma once

#include <string>
#include <string_view>

namespace mpsshim::broker {

inline constexpr std::size_t kLongestLogLine = 4'096;  // bytes; what is longer is cut, and ends in "..."

// Control characters, bytes that are no UTF-8, and characters that end lines or turn the direction of writing come as \xNN, byte for byte.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace mpsshim::broker
