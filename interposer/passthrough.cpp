// SPDX-License-Identifier: Apache-2.0
#include "interposer/passthrough.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interposer/environment.hpp"
#include "interposer/loader.hpp"
#include "interposer/log.hpp"
#include "proto/own_library.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer {

namespace {

constexpr std::string_view kDriverName = "libcuda.so.1";
constexpr char kLoaderCache[] = "/etc/ld.so.cache";
constexpr std::array<std::string_view, 6> kUsualDirectories = {
    "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib"};

DriverTable real_table;            // filled once, before the state says pass_through
std::string* real_path = nullptr;  // leaked: late calls

void add_library_path(std::vector<std::string>& candidates) {
  std::string_view rest = environment_value(Variable::library_path);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find_first_of(":;"), rest.size());
    if (end != 0 && rest.front() == '/') candidates.push_back(std::string(rest.substr(0, end)) + '/' + std::string(kDriverName));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

// Without iostreams, which would bring locales and their constructors into every program.
std::string read_file(const char* name) {
  const proto::FileDescriptor file(open(name, O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) return {};
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t got = pread(file.get(), content.data(), content.size(), 0);
  content.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return content;
}

// The cache holds absolute paths as zero-terminated strings; asking the loader by name instead would find this library.
void add_loader_cache(std::vector<std::string>& candidates) {
  const std::string cache = read_file(kLoaderCache);
  const std::string wanted = '/' + std::string(kDriverName) + '\0';
  for (std::size_t at = cache.find(wanted); at != std::string::npos; at = cache.find(wanted, at + 1)) {
    const std::size_t before = cache.rfind('\0', at);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    if (cache[begin] == '/') candidates.push_back(cache.substr(begin, at + wanted.size() - 1 - begin));
  }
}

std::vector<std::string> find_candidates() {
  std::vector<std::string> candidates;
  add_library_path(candidates);
  add_loader_cache(candidates);
  for (const std::string_view directory : kUsualDirectories) {
    candidates.push_back(std::string(directory) + '/' + std::string(kDriverName));
  }
  return candidates;
}

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
  const std::vector<std::string> candidates = find_candidates();
  return std::any_of(candidates.begin(), candidates.end(), try_load);
}

bool is_self_query(const void** answer, const CUuuid* id) {
  if (answer == nullptr || id == nullptr || std::memcmp(id, &proto::kOwnTableId, sizeof *id) != 0) return false;
  *answer = &proto::kOwnTableId;
  return true;
}

const DriverTable& real_driver() { return real_table; }
const char* real_driver_path() { return real_path == nullptr ? "" : real_path->c_str(); }

}  // namespace mpsshim::interposer
