// SPDX-License-Identifier: Apache-2.0
// Lines on standard error of the host program: one sentence each, written with one write(2), so that lines of several threads and processes
// do not mix. No allocation, no lock, no buffering: may be called from any thread at any time, also after destructors have run.
//
// `log_line` is for the few errors a user must see. Everything else goes through `debug_line` and appears only if its topic stands in
// MPSSHIM_DEBUG.
#pragma once

#include <cstdint>

namespace mpsshim::interposer {

enum class DebugTopic : std::uint8_t {
  env,          // the table of environment variables and their values, once
  settle,       // how this process decided between the broker and the real driver
  calls,        // each API call with its result
  unsupported,  // the first call of each function that is not supported
  wait,         // waits that last longer than ten seconds
  channel,      // attaching, moving, losing the session
  cache,        // what the compile cache gives and takes
};

// Reads MPSSHIM_DEBUG at the first call in a process. Topics are separated by commas; `all` is every topic.
[[nodiscard]] bool debug_enabled(DebugTopic topic);

[[gnu::format(printf, 1, 2)]] void log_line(const char* format, ...);
[[gnu::format(printf, 2, 3)]] void debug_line(DebugTopic topic, const char* format, ...);

}  // namespace mpsshim::interposer
