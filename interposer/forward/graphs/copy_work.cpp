// SPDX-License-Identifier: Apache-2.0
// Copies of graphs: CUDA_MEMCPY3D as the driver checks it, reduced to addresses and pitches.
#include "interposer/forward/graphs/node_work.hpp"
#include "interposer/forward/memory/copy.hpp"

namespace mpsshim::interposer::forward {

namespace {

struct NodeSide {
  CUmemorytype type{};
  std::uint64_t address = 0;
  std::size_t x = 0, y = 0, z = 0;
  std::size_t pitch = 0, rows = 0;
};

NodeSide source_of(const CUDA_MEMCPY3D& p) {
  const auto address = p.srcMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uintptr_t>(p.srcHost) : p.srcDevice;
  return {p.srcMemoryType, address, p.srcXInBytes, p.srcY, p.srcZ, p.srcPitch, p.srcHeight};
}

NodeSide destination_of(const CUDA_MEMCPY3D& p) {
  const auto address = p.dstMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uintptr_t>(p.dstHost) : p.dstDevice;
  return {p.dstMemoryType, address, p.dstXInBytes, p.dstY, p.dstZ, p.dstPitch, p.dstHeight};
}

// The address of the first byte, and in what memory the box lies.
CUresult locate(NodeSide& side, const CUDA_MEMCPY3D& p, Space& space) {
  if (side.type == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
  if (side.type != CU_MEMORYTYPE_HOST && side.type != CU_MEMORYTYPE_DEVICE && side.type != CU_MEMORYTYPE_UNIFIED) return CUDA_ERROR_INVALID_VALUE;
  if (p.Height == 1 && p.Depth == 1 && side.pitch == 0) side.pitch = side.x + p.WidthInBytes;
  if (side.pitch < side.x + p.WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
  if (p.Depth > 1 && side.rows < side.y + p.Height) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t before = 0, extent = 0, skipped = 0;
  if (__builtin_mul_overflow(side.z, side.rows, &before) || __builtin_add_overflow(before, side.y, &before) ||
      __builtin_mul_overflow(before, side.pitch, &before) || __builtin_add_overflow(before, side.x, &before) ||
      __builtin_add_overflow(side.address, before, &skipped)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  side.address = skipped;
  if (!proto::box_extent(p.WidthInBytes, p.Height, p.Depth, side.pitch, side.rows, extent)) return CUDA_ERROR_INVALID_VALUE;
  const Named named = side.type == CU_MEMORYTYPE_HOST ? Named::host : side.type == CU_MEMORYTYPE_DEVICE ? Named::device : Named::by_address;
  return classify(side.address, extent, named, space);
}

}  // namespace

CUresult make_copy_work(const CUDA_MEMCPY3D& params, CUcontext context, WorkRef& work) {
  if (params.WidthInBytes == 0 || params.Height == 0 || params.Depth == 0) return CUDA_ERROR_INVALID_VALUE;
  NodeSide source = source_of(params);
  NodeSide destination = destination_of(params);
  Space from{}, to{};
  if (const CUresult error = locate(source, params, from); error != CUDA_SUCCESS) return error;
  if (const CUresult error = locate(destination, params, to); error != CUDA_SUCCESS) return error;
  CopyWork made{params, context, {}};
  made.copy = {.destination = destination.address,
               .source = source.address,
               .width_bytes = params.WidthInBytes,
               .height = params.Height,
               .depth = params.Depth,
               .destination_pitch_bytes = destination.pitch,
               .destination_rows = destination.rows,
               .source_pitch_bytes = source.pitch,
               .source_rows = source.rows,
               .destination_space = to,
               .source_space = from};
  work = std::make_shared<const NodeWork>(std::move(made));
  return CUDA_SUCCESS;
}

CUresult make_linear_copy_work(const CopySide& destination, const CopySide& source, std::size_t bytes, WorkRef& work) {
  CUDA_MEMCPY3D params{};
  const auto type_of_memory = [](Named named) {
    return named == Named::host ? CU_MEMORYTYPE_HOST : named == Named::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED;
  };
  params.dstMemoryType = type_of_memory(destination.named);
  params.dstHost = reinterpret_cast<void*>(destination.address);  // NOLINT(performance-no-int-to-ptr)
  params.dstDevice = destination.address;
  params.srcMemoryType = type_of_memory(source.named);
  params.srcHost = reinterpret_cast<const void*>(source.address);  // NOLINT(performance-no-int-to-ptr)
  params.srcDevice = source.address;
  params.WidthInBytes = bytes;
  params.Height = params.Depth = 1;
  return make_copy_work(params, nullptr, work);
}

}  // namespace mpsshim::interposer::forward
