// SPDX-License-Identifier: Apache-2.0
// A "real driver" for the pass-through tests: a few functions with answers that nobody else gives, and none of the others.
#include "gen/cuda_api.hpp"

#define EXPORTED extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

EXPORTED cuInit(unsigned int flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
EXPORTED cuDriverGetVersion(int* version) {
  *version = 4711;
  return CUDA_SUCCESS;
}
EXPORTED cuDeviceGetCount(int* count) {
  *count = 77;
  return CUDA_SUCCESS;
}
EXPORTED cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}
// The stream it was given, as a result: the per-thread variant's own name, and what became of its argument.
EXPORTED cuStreamQuery(CUstream stream) { return static_cast<CUresult>(1000 + reinterpret_cast<unsigned long>(stream)); }
EXPORTED cuStreamQuery_ptsz(CUstream stream) { return static_cast<CUresult>(2000 + reinterpret_cast<unsigned long>(stream)); }
