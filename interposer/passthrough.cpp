// SPDX-License-Identifier: Apache-2.0
#include "interposer/passthrough.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include "interposer/environment.hpp"
#include "interposer/forward/management.hpp"
#include "interposer/library_places.hpp"
#include "interposer/loader.hpp"
#include "interposer/log.hpp"
#include "proto/own_library.hpp"

namespace mpsshim::interposer {

namespace {

DriverTable real_table;            // filled once, before the state says pass_through
std::string* real_path = nullptr;  // leaked: late calls

// This library stands in for libcuda.so.1 under that very name: in a directory of its own, or by a link.
bool is_interposer(void* library) {
  const auto get_export_table = reinterpret_cast<decltype(DriverTable::cuGetExportTable)>(dlsym(library, "cuGetExportTable"));
  if (get_export_table == nullptr) return false;
  const void* answer = nullptr;
  const auto id = std::bit_cast<CUuuid>(proto::kOwnTableId);
  return get_export_table(&answer, &id) == CUDA_SUCCESS;
}

void fill_table(void* library) {
  for (const DriverSymbol& symbol : kDriverSymbols) {
    void* address = dlsym(library, symbol.name);
    std::memcpy(reinterpret_cast<std::byte*>(&real_table) + symbol.offset, &address, sizeof address);
  }
}

bool try_load(const std::string& candidate) {
  if (access(candidate.c_str(), R_OK) != 0) return false;
  void* library = next_dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);  // ours would give us this library
  if (library == nullptr) {
    debug_line(DebugTopic::settle, "%s is not used: %s.", candidate.c_str(), dlerror());
    return false;
  }
  if (dlsym(library, "cuInit") == nullptr || is_interposer(library)) {
    debug_line(DebugTopic::settle, "%s is not used: it is not a driver, or it is this library.", candidate.c_str());
    dlclose(library);
    return false;
  }
  fill_table(library);
  real_path = new std::string(candidate);
  return true;
}

}  // namespace

bool load_real_driver() {
  if (real_path != nullptr) return true;
  const std::string named(environment_value(Variable::real_driver));
  if (!named.empty()) {
    if (try_load(named)) return true;
    log_line("MPSSHIM_REAL_DRIVER=%s is not a CUDA driver that can be loaded: name the real libcuda.so.1 by its path.", named.c_str());
    return false;
  }
  const std::vector<std::string> candidates = library_candidates("libcuda.so.1", environment_value(Variable::library_path));
  return std::any_of(candidates.begin(), candidates.end(), try_load);
}

bool is_self_query(const void** answer, const CUuuid* id) {
  if (answer == nullptr || id == nullptr) return false;
  if (std::memcmp(id, &proto::kOwnTableId, sizeof *id) == 0) {
    *answer = &proto::kOwnTableId;
  } else if (std::memcmp(id, &proto::kManagementTableId, sizeof *id) == 0) {
    *answer = &forward::management_table();
  } else {
    return false;
  }
  return true;
}

const DriverTable& real_driver() { return real_table; }
const char* real_driver_path() { return real_path == nullptr ? "" : real_path->c_str(); }

}  // namespace mpsshim::interposer
