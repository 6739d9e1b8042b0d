// SPDX-License-Identifier: Apache-2.0
#include "interposer/environment.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <unistd.h>

#include "interposer/log.hpp"
#include "proto/local_rank.hpp"
#include "proto/pipe_directory.hpp"

namespace mpsshim::interposer {

namespace {

struct VariableRow {
  Variable variable;
  const char* name;
  const char* meaning;
};

constexpr std::array kTable = {
    VariableRow{Variable::pipe_directory, "CUDA_MPS_PIPE_DIRECTORY", "directory of the broker's sockets"},
    VariableRow{Variable::memory_limit, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                "device memory this process may have, by device: 0=1G,GPU-…=512MB; a broker's lower limit holds"},
    VariableRow{Variable::thread_percentage, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                "multiprocessors of each device this process may use, above 0 to 100; a broker's lower percentage holds"},
    VariableRow{Variable::context_percentages, "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
                "1: a context that cuCtxCreate makes has the percentage that CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is then, if it is lower"},
    VariableRow{Variable::client_priority, "CUDA_MPS_CLIENT_PRIORITY",
                "how urgent this process's work is: 0 (normal), 1 (below normal), or 2 or 3 (below that, where the broker has them)"},
    VariableRow{Variable::group, "MPSSHIM_GROUP",
                "group of clients whose limits this process shares (mpsctl namespace): lowercase letters, digits, underscores"},
    VariableRow{Variable::sm_partition, "CUDA_MPS_SM_PARTITION",
                "static partition of the multiprocessors this process runs in, as mpsctl sm_partition add names it; of several devices by commas"},
    VariableRow{Variable::runtime_directory, "XDG_RUNTIME_DIR", "its folder mpsshim is looked for a broker where no directory is named"},
    VariableRow{Variable::disable, "MPSSHIM_DISABLE", "1: never look for a broker, every call goes to the real driver"},
    VariableRow{Variable::require, "MPSSHIM_REQUIRE", "1: without a broker every call fails (CUDA_ERROR_MPS_CONNECTION_FAILED)"},
    VariableRow{Variable::real_driver, "MPSSHIM_REAL_DRIVER", "path of the real libcuda.so.1, for calls that pass through"},
    VariableRow{Variable::debug, "MPSSHIM_DEBUG", "topics, by commas: env, settle, calls, unsupported, wait, channel, cache, all"},
    VariableRow{Variable::visible_devices, "CUDA_VISIBLE_DEVICES", "devices this process sees, by index or UUID; read by cuInit"},
    VariableRow{Variable::library_path, "LD_LIBRARY_PATH", "searched for the real libcuda.so.1, for calls that pass through"},
    VariableRow{Variable::module_loading, "CUDA_MODULE_LOADING", "LAZY or EAGER, as cuModuleGetLoadingMode answers"},
    VariableRow{Variable::copy_threads, "MPSSHIM_COPY_THREADS",
                "threads that share a large copy from or to pageable memory; 1: the calling one alone"},
    VariableRow{Variable::staging_kib, "MPSSHIM_STAGING_KIB",
                "for tests: KiB of pinned memory that copies from and to pageable memory go through, 512 at least; it does not grow"},
    VariableRow{Variable::managed, "MPSSHIM_MANAGED", "where managed memory lives: host, device or auto (if not set; docs/memory.md)"},
    VariableRow{Variable::managed_touches, "MPSSHIM_MANAGED_TOUCHES",
                "for tests: userfaultfd or signal, the one way to notice touches of managed memory"},
    VariableRow{Variable::latency, "MPSSHIM_LATENCY",
                "how this process's threads wait for the GPU: low, balanced (if not set: as the broker says) or saving"},
    VariableRow{Variable::trace, "MPSSHIM_TRACE", "file: a timeline of this process is written to file.<pid> (docs/tracing.md)"},
    VariableRow{Variable::log_file, "CUDA_LOG_FILE", "stdout, stderr or a file: calls that fail are written there, a line each"},
    VariableRow{Variable::cache_disable, "CUDA_CACHE_DISABLE", "1: nothing that is compiled at run time is kept or looked for"},
    VariableRow{Variable::cache_path, "CUDA_CACHE_PATH", "its folder mpsshim-<uid> is the compile cache; else the one in ~/.nv"},
    VariableRow{Variable::cache_max_bytes, "CUDA_CACHE_MAXSIZE", "largest size of the compile cache in bytes; 1 GiB if not set, 4 GiB at most"},
    VariableRow{Variable::home, "HOME", "where ~/.nv is, for the compile cache"},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].variable) != i) return false;
  }
  return true;
}
static_assert(in_order(), "variable_name() uses the enumerator as index");

// What says whom to trust, what to load or where to write. A program that has more rights than its caller (set-uid) does not take that from the
// caller's environment.
constexpr bool needs_trust(Variable variable) {
  switch (variable) {
    case Variable::pipe_directory:
    case Variable::runtime_directory:
    case Variable::real_driver:
    case Variable::library_path:
    case Variable::trace:
    case Variable::log_file:
    case Variable::cache_path:
    case Variable::home: return true;
    case Variable::memory_limit:
    case Variable::thread_percentage:
    case Variable::context_percentages:
    case Variable::client_priority:
    case Variable::group:
    case Variable::sm_partition:
    case Variable::disable:
    case Variable::require:
    case Variable::debug:
    case Variable::visible_devices:
    case Variable::module_loading:
    case Variable::copy_threads:
    case Variable::staging_kib:
    case Variable::managed:
    case Variable::managed_touches:
    case Variable::latency:
    case Variable::cache_disable:
    case Variable::cache_max_bytes: return false;
  }
  return true;
}

const char* raw_value(Variable variable) {
  return needs_trust(variable) ? secure_getenv(variable_name(variable)) : std::getenv(variable_name(variable));
}

}  // namespace

const char* variable_name(Variable variable) { return kTable[static_cast<std::size_t>(variable)].name; }

std::string_view environment_value(Variable variable) {
  const char* value = raw_value(variable);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

bool environment_is_set(Variable variable) { return raw_value(variable) != nullptr; }

bool environment_has_local_rank() {
  return std::ranges::any_of(proto::kLocalRanks, [](const char* name) {
    const bool is_a_step = std::string_view(name) != proto::kSlurmLocalRank || std::getenv(proto::kSlurmStep) != nullptr;
    return is_a_step && std::getenv(name) != nullptr;
  });
}

bool environment_switch(Variable variable) {
  const std::string_view value = environment_value(variable);
  return !value.empty() && value != "0";
}

std::vector<std::string> pipe_directories() {
  return proto::directories_to_search({environment_value(Variable::pipe_directory), environment_value(Variable::runtime_directory), getuid()});
}

std::vector<std::string> unnamed_pipe_directories() {
  return proto::directories_to_search({{}, environment_value(Variable::runtime_directory), getuid()});
}

void print_environment() {
  if (!debug_enabled(DebugTopic::env)) return;
  for (const VariableRow& row : kTable) {
    const char* value = raw_value(row.variable);
    log_line("%s is %s%s%s (%s).", row.name, value == nullptr ? "not set" : "\"", value == nullptr ? "" : value, value == nullptr ? "" : "\"",
             row.meaning);
  }
}

}  // namespace mpsshim::interposer
