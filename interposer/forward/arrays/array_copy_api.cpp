// SPDX-License-Identifier: Apache-2.0
// One-dimensional copies to and from arrays (CUDA Driver API manual, "Memory Management"). An offset counts bytes; in an array of rows it goes on
// from row to row, and the copy must be a part of one row.
#include "gen/api_declarations.hpp"
#include "interposer/forward/across_sessions.hpp"
#include "interposer/forward/arrays/array_copy.hpp"
#include "interposer/forward/arrays/arrays.hpp"
#include "interposer/forward/memory/sync_memops.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

struct Box {
  std::uint64_t x = 0;
  std::uint64_t y = 0;
  std::uint64_t width = 0;
};

CUresult box_of(const Array& array, std::size_t offset, std::size_t bytes, Box& box) {
  const std::uint64_t row = array.descriptor.Width * element_bytes(array.descriptor);
  if (row == 0 || array.descriptor.Depth > 1) return CUDA_ERROR_INVALID_VALUE;
  box = {offset % row, offset / row, bytes};
  return bytes <= row - box.x ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The linear side, or the other array, is in `copy`.
CUresult copy_array(CUarray handle, std::size_t offset, bool is_destination, std::size_t bytes, CUDA_MEMCPY3D copy, Stream* stream,
                    Completion completion) {
  const Array* array = Arrays::instance().resolve(handle);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_SUCCESS;
  Box box;
  if (const CUresult error = box_of(*array, offset, bytes, box); error != CUDA_SUCCESS) return error;
  if (is_destination) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = handle;
    copy.dstXInBytes = box.x;
    copy.dstY = box.y;
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = handle;
    copy.srcXInBytes = box.x;
    copy.srcY = box.y;
  }
  copy.WidthInBytes = box.width;
  copy.Height = 1;
  copy.Depth = 1;
  return copy_with_array(*stream, copy, completion);
}

CUDA_MEMCPY3D from_host(const void* host) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  return copy;
}
CUDA_MEMCPY3D to_host(void* host) {
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host;
  return copy;
}

template <typename F>
CUresult now(F&& f) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  return in_default_stream([&](Stream& stream) { return SyncMemops::instance().finish(f(&stream), stream); });
}
template <typename F>
CUresult later(CUstream handle, F&& f) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  return f(Streams::instance().resolve(handle));
}

}  // namespace

CUresult cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount) {
  return now([&](Stream* stream) { return copy_array(dstArray, dstOffset, true, ByteCount, from_host(srcHost), stream, Completion::host_safe); });
}
CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount, CUstream hStream) {
  return later(hStream,
               [&](Stream* stream) { return copy_array(dstArray, dstOffset, true, ByteCount, from_host(srcHost), stream, Completion::as_posted); });
}
CUresult cuMemcpyAtoH_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
  return now([&](Stream* stream) { return copy_array(srcArray, srcOffset, false, ByteCount, to_host(dstHost), stream, Completion::host_safe); });
}
CUresult cuMemcpyAtoHAsync_v2(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream) {
  return later(hStream,
               [&](Stream* stream) { return copy_array(srcArray, srcOffset, false, ByteCount, to_host(dstHost), stream, Completion::as_posted); });
}

CUresult cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = srcDevice;
  return now([&](Stream* stream) { return copy_array(dstArray, dstOffset, true, ByteCount, copy, stream, Completion::host_safe); });
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
  CUDA_MEMCPY3D copy{};
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = dstDevice;
  return now([&](Stream* stream) { return copy_array(srcArray, srcOffset, false, ByteCount, copy, stream, Completion::host_safe); });
}

// Both boxes must have the same form.
CUresult cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
  return now([&](Stream* stream) {
    const Array* source = Arrays::instance().resolve(srcArray);
    const Array* destination = Arrays::instance().resolve(dstArray);
    if (source == nullptr || destination == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (ByteCount == 0) return CUDA_SUCCESS;
    Box from, to;
    if (const CUresult error = box_of(*source, srcOffset, ByteCount, from); error != CUDA_SUCCESS) return error;
    if (const CUresult error = box_of(*destination, dstOffset, ByteCount, to); error != CUDA_SUCCESS) return error;
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = srcArray;
    copy.srcXInBytes = from.x;
    copy.srcY = from.y;
    return copy_array(dstArray, dstOffset, true, ByteCount, copy, stream, Completion::host_safe);
  });
}

}  // namespace mpsshim::interposer::api
