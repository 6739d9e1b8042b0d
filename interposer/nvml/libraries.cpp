// SPDX-License-Identifier: Apache-2.0
// The two libraries that the shadow stands between: NVIDIA's, and libmpsshim.so.
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gen/cuda_api.hpp"
#include "interposer/library_places.hpp"
#include "interposer/nvml/shadow.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer::nvml {

namespace {

constexpr char kName[] = "libnvidia-ml.so.1";
constexpr char kMark[] = "mpsshim_nvml_shadow";

constexpr const char* kFunctionNames[] = {
#define MPSSHIM_NVML_FUNCTION(name) #name,
#include "gen/nvml_functions.inc"
#undef MPSSHIM_NVML_FUNCTION
};
static_assert(std::size(kFunctionNames) == static_cast<std::size_t>(Function::count));

using RealFunction = Word (*)(Word, Word, Word, Word, Word, Word);

// Written by settle() alone, and read behind it.
RealFunction real[static_cast<std::size_t>(Function::count)];
const proto::ManagementTable* management = nullptr;
std::atomic<bool> real_is_there{false};

// A program that has more rights than its caller heeds no variable.
const char* variable(const char* name) {
  const char* value = secure_getenv(name);
  return value == nullptr ? "" : value;
}

// fstat() alone is of a C library as old as 2.28 (interposer/glibc).
bool find_file(const char* path, struct stat& status) {
  const proto::FileDescriptor file(open(path, O_PATH | O_CLOEXEC));
  return file.valid() && fstat(file.get(), &status) == 0;
}

// By its file: under whatever name, and by whatever link.
bool is_this_library(const std::string& path) {
  Dl_info own{};
  struct stat ours {
  }, theirs{};
  return dladdr(reinterpret_cast<const void*>(&is_this_library), &own) != 0 && find_file(own.dli_fname, ours) && find_file(path.c_str(), theirs) &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

bool load_real(const std::string& path) {
  if (access(path.c_str(), R_OK) != 0 || is_this_library(path)) return false;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  if (dlsym(library, kMark) != nullptr || dlsym(library, "nvmlInit_v2") == nullptr) {  // another copy of this one, or something else
    dlclose(library);
    return false;
  }
  for (std::size_t i = 0; i < std::size(kFunctionNames); ++i) real[i] = std::bit_cast<RealFunction>(dlsym(library, kFunctionNames[i]));
  return true;
}

bool find_real() {
  if (const std::string named = variable("MPSSHIM_REAL_NVML"); !named.empty()) return load_real(named);
  for (const std::string& path : library_candidates(kName, variable("LD_LIBRARY_PATH"))) {
    if (load_real(path)) return true;
  }
  return false;
}

const proto::ManagementTable* table_of(void* library) {
  if (library == nullptr) return nullptr;
  const auto get_table = std::bit_cast<CUresult (*)(const void**, const CUuuid*)>(dlsym(library, "cuGetExportTable"));
  const void* answer = nullptr;
  const auto id = std::bit_cast<CUuuid>(proto::kManagementTableId);
  if (get_table == nullptr || get_table(&answer, &id) != CUDA_SUCCESS || answer == nullptr) return nullptr;
  const auto* const table = static_cast<const proto::ManagementTable*>(answer);
  return table->size_bytes == sizeof *table ? table : nullptr;
}

// By the driver's name it is what this program's CUDA calls go to, or would: ours, or NVIDIA's, of which there is nothing to be asked.
const proto::ManagementTable* find_management() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const proto::ManagementTable* const table = table_of(library);
  if (table == nullptr && library != nullptr) dlclose(library);
  return table;
}

void settle() {
  static std::once_flag once;
  std::call_once(once, [] {
    management = find_management();
    real_is_there.store(find_real(), std::memory_order_release);
  });
}

}  // namespace

bool has_real() {
  settle();
  return real_is_there.load(std::memory_order_acquire);
}

void give_up_real() { real_is_there.store(false, std::memory_order_release); }

Word call_real(Function function, const Words& words) {
  const RealFunction target = real[static_cast<std::size_t>(function)];
  if (target == nullptr) return word(Result::function_not_found);
  return target(words[0], words[1], words[2], words[3], words[4], words[5]);
}

const proto::ManagementTable* client() {
  settle();
  return management != nullptr && management->facts() != nullptr ? management : nullptr;
}

}  // namespace mpsshim::interposer::nvml
