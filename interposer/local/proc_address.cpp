// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress (CUDA Driver API manual, "Driver Entry Point Access"): name, CUDA version and default stream to one of this library's own
// exported functions. The runtime asks for some 440 at its first call, so it is a binary search in a constant table: no lock, no request.
//
// Among the variants of a name the newest that is not newer than the version asked for is given; per-thread variants where they exist and are
// asked for.
#include <cstring>

#include "gen/api_declarations.hpp"
#include "interposer/local/proc_address_table.hpp"

namespace mpsshim::interposer::api {

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  void* found = nullptr;
  if (pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = api::cuGetProcAddress_v2(symbol, &found, cudaVersion, flags, nullptr); error != CUDA_SUCCESS) return error;
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;  // and *pfn as it was (measured)
  *pfn = found;
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags, CUdriverProcAddressQueryResult* symbolStatus) {
  constexpr cuuint64_t kKnownFlags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || pfn == nullptr || (flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;  // whether or not the other is asked for, too
  const ProcAddress found = find_proc_address(symbol, cudaVersion, per_thread);
  *pfn = reinterpret_cast<void*>(found.function);
  // Measured: the call succeeds whatever it finds, and the status and the pointer say what that was.
  if (symbolStatus == nullptr) return CUDA_SUCCESS;
  *symbolStatus = found.function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                  : found.is_known          ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
