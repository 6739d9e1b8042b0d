// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Driver Entry Point Access". Names and versions are those of the spec, found among this library's own exports: of
// the versions not newer than the caller's CUDA version the newest that is here. Undocumented tables do not exist.
#include <dlfcn.h>

#include <cstring>

#include "broker/cpudriver/api/entry.hpp"

using namespace mpsshim::cpudriver;

namespace {

struct Row {
  const char* name;
  int cuda_version;
  const char* export_name;
  bool is_per_thread;
};

constexpr bool default_stream = false;
constexpr bool per_thread = true;

// Sorted by name, stream, version.
constexpr Row kRows[] = {
#define MPSSHIM_PROC_ADDRESS(name, version, stream, symbol) {#name, version, #symbol, stream},
#include "gen/proc_address.inc"
#undef MPSSHIM_PROC_ADDRESS
};

void* own_library() {
  static void* const library = [] {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&own_library), &info) == 0) return static_cast<void*>(nullptr);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return library;
}

struct Found {
  void* function = nullptr;
  bool exists_but_newer = false;
};

Found find(const char* name, int cuda_version, bool wants_per_thread) {
  Found plain;
  void* own_stream = nullptr;
  for (const Row& row : kRows) {
    if (std::strcmp(row.name, name) != 0) continue;
    void* const function = dlsym(own_library(), row.export_name);
    if (function == nullptr) continue;
    if (row.cuda_version > cuda_version) {
      plain.exists_but_newer = true;
    } else {
      (row.is_per_thread ? own_stream : plain.function) = function;
    }
  }
  if (wants_per_thread && own_stream != nullptr) plain.function = own_stream;
  return plain;
}

}  // namespace

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags, CUdriverProcAddressQueryResult* symbolStatus) {
  return entry(Needs::nothing, [&] {
    constexpr cuuint64_t kBoth = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (symbol == nullptr || pfn == nullptr || own_library() == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & ~kBoth) != 0) return CUDA_ERROR_INVALID_VALUE;
    const Found found = find(symbol, cudaVersion, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    *pfn = found.function;
    // Measured: the call succeeds whatever it finds, and the status and the pointer say what that was.
    if (symbolStatus == nullptr) return CUDA_SUCCESS;
    *symbolStatus = found.function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                    : found.exists_but_newer  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  if (ppExportTable == nullptr || pExportTableId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
