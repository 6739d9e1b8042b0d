// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Driver Entry Point Access". Names are found among this library's own exports: the newest
// version of a name that is here and not newer than the caller's CUDA version. Undocumented tables do not exist.
#include <dlfcn.h>

#include <string>

#include "broker/cpudriver/api/entry.hpp"

using namespace mpsshim::cpudriver;

namespace {

// Exports whose newer version has another signature, so that a caller built before it must not get it.
struct ChangedSince {
  const char* export_name;
  int cuda_version;
};
constexpr ChangedSince kChangedSince[] = {
    {"cuGraphAddDependencies_v2", 12030},
    {"cuGraphAddKernelNode_v2", 12000},
    {"cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams_v2", 12000},
    {"cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGetProcAddress_v2", 12000},
};

void* own_library() {
  static void* const library = [] {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&own_library), &info) == 0) return static_cast<void*>(nullptr);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return library;
}

bool is_too_new(const std::string& export_name, int cuda_version) {
  for (const ChangedSince& change : kChangedSince) {
    if (export_name == change.export_name) return cuda_version < change.cuda_version;
  }
  return false;
}

void* find_export(const char* symbol, int cuda_version, bool& exists_but_newer) {
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    const std::string export_name = std::string(symbol) + suffix;
    void* const found = dlsym(own_library(), export_name.c_str());
    if (found == nullptr) continue;
    if (!is_too_new(export_name, cuda_version)) return found;
    exists_but_newer = true;
  }
  return nullptr;
}

}  // namespace

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t,
                                  CUdriverProcAddressQueryResult* symbolStatus) {
  return entry(Needs::nothing, [&] {
    if (symbol == nullptr || pfn == nullptr || own_library() == nullptr) return CUDA_ERROR_INVALID_VALUE;
    bool exists_but_newer = false;
    *pfn = find_export(symbol, cudaVersion, exists_but_newer);
    if (symbolStatus != nullptr) {
      *symbolStatus = *pfn != nullptr      ? CU_GET_PROC_ADDRESS_SUCCESS
                      : exists_but_newer ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                         : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return *pfn == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  if (ppExportTable == nullptr || pExportTableId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
