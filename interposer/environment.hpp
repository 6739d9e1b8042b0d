// SPDX-License-Identifier: Apache-2.0
// Every environment variable the interposer reads, in one table (environment.cpp), but for the launchers' of proto/local_rank.hpp. MPSSHIM_DEBUG=env
// prints the table with the values found.
//
// Values are read when they are needed, not when the library is loaded, and belong to the C library: use them at once. Programs set
// CUDA_VISIBLE_DEVICES from inside before they initialise CUDA, so it is read by cuInit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::interposer {

enum class Variable : std::uint8_t {
  pipe_directory,
  memory_limit,
  thread_percentage,
  context_percentages,
  client_priority,
  group,
  sm_partition,
  runtime_directory,
  disable,
  require,
  real_driver,
  debug,
  visible_devices,
  library_path,
  module_loading,
  copy_threads,
  staging_kib,
  managed,
  managed_touches,
  latency,
  trace,
  log_file,
  cache_disable,
  cache_path,
  cache_max_bytes,
  home,
};

[[nodiscard]] const char* variable_name(Variable variable);

// Its value; an empty view if it is not set.
[[nodiscard]] std::string_view environment_value(Variable variable);
[[nodiscard]] bool environment_is_set(Variable variable);

// Whether a launcher has given this process a number among those on its machine (proto/local_rank.hpp): it goes by that itself.
[[nodiscard]] bool environment_has_local_rank();

// A switch is on if its value is neither empty nor 0.
[[nodiscard]] bool environment_switch(Variable variable);

// Where a broker's sockets may be, in order (proto/pipe_directory.hpp): the one that is named alone, else the others.
[[nodiscard]] std::vector<std::string> pipe_directories();
[[nodiscard]] std::vector<std::string> unnamed_pipe_directories();  // as if none were named

// One line for each variable on standard error, if MPSSHIM_DEBUG asks for it.
void print_environment();

}  // namespace mpsshim::interposer
