// SPDX-License-Identifier: Apache-2.0
// Batches of one-dimensional copies (CUDA Driver API manual, "Memory Management"): copies of one stream, one after the other. What the
// attributes allow beyond that, reading a source earlier or in another order, is not made use of.
#include <cstdint>

#include "gen/api_declarations.hpp"
#include "interposer/forward/memory/copy.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

struct Batch {
  const CUdeviceptr* destinations;
  const CUdeviceptr* sources;
  const size_t* sizes;
  size_t count;
};

// Attributes name ranges of copies by their first: ascending, from 0.
bool are_ranges(const CUmemcpyAttributes* attributes, const size_t* first, size_t ranges, size_t count) {
  if (attributes == nullptr || first == nullptr || ranges == 0 || ranges > count || first[0] != 0) return false;
  for (size_t i = 1; i < ranges; ++i) {
    if (first[i] <= first[i - 1] || first[i] >= count) return false;
  }
  return true;
}

CUresult copy_batch(const Batch& batch, bool has_ranges, CUstream handle, size_t& failed) {
  failed = SIZE_MAX;  // no single copy is to blame
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  if (batch.destinations == nullptr || batch.sources == nullptr || batch.sizes == nullptr || batch.count == 0 || !has_ranges) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return CUDA_ERROR_INVALID_VALUE;  // as the manual has it
  Stream* stream = Streams::instance().resolve(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  for (size_t i = 0; i < batch.count; ++i) {
    const CUresult error = copy(*stream, {batch.destinations[i]}, {batch.sources[i]}, batch.sizes[i], Completion::as_posted);
    if (error == CUDA_SUCCESS) continue;
    failed = i;
    return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs, size_t* attrsIdxs,
                            size_t numAttrs, size_t* failIdx, CUstream hStream) {
  size_t failed = SIZE_MAX;
  const CUresult error = copy_batch({dsts, srcs, sizes, count}, are_ranges(attrs, attrsIdxs, numAttrs, count), hStream, failed);
  if (failIdx != nullptr && error != CUDA_SUCCESS) *failIdx = failed;
  return error;
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs, size_t* attrsIdxs,
                               size_t numAttrs, CUstream hStream) {
  size_t failed = SIZE_MAX;
  return copy_batch({dsts, srcs, sizes, count}, are_ranges(attrs, attrsIdxs, numAttrs, count), hStream, failed);
}

}  // namespace mpsshim::interposer::api
