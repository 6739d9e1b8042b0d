// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/box_across.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

#include "interposer/forward/across_sessions.hpp"
#include "interposer/forward/arrays/arrays.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint64_t kPieceBytes = 32u << 20;

std::optional<std::uint32_t> session_of_end(CUmemorytype type, CUarray array, CUdeviceptr address) {
  switch (type) {
    case CU_MEMORYTYPE_ARRAY: return id_of<proto::HandleKind::array>(array).realm();
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: return session_holding(address);
    default: return std::nullopt;
  }
}

std::optional<ApartEnds> apart(std::optional<std::uint32_t> destination, std::optional<std::uint32_t> source) {
  if (!destination || !source || *destination == *source || std::max(*destination, *source) >= session_count()) return std::nullopt;
  return ApartEnds{*destination, *source};
}

// What is copied at once: whole slices, or else rows of one, or else a part of a row.
BoxSize piece_of(const CUDA_MEMCPY3D& volume) {
  const std::uint64_t width = std::min<std::uint64_t>(volume.WidthInBytes, kPieceBytes);
  const std::uint64_t rows = std::min<std::uint64_t>(kPieceBytes / width, volume.Height);
  const std::uint64_t slices = rows == volume.Height ? std::min<std::uint64_t>(kPieceBytes / (width * rows), volume.Depth) : 1;
  return {width, rows, slices};
}

struct Corner {
  std::uint64_t x, y, z;
};
CUDA_MEMCPY3D part_of(const CUDA_MEMCPY3D& volume, const Corner& from, const BoxSize& most) {
  CUDA_MEMCPY3D part = volume;
  part.srcXInBytes += from.x;
  part.dstXInBytes += from.x;
  part.srcY += from.y;
  part.dstY += from.y;
  part.srcZ += from.z;
  part.dstZ += from.z;
  part.WidthInBytes = std::min<std::uint64_t>(most.width, volume.WidthInBytes - from.x);
  part.Height = std::min<std::uint64_t>(most.height, volume.Height - from.y);
  part.Depth = std::min<std::uint64_t>(most.depth, volume.Depth - from.z);
  return part;
}

CUresult copy_piece(const CUDA_MEMCPY3D& piece, const ApartEnds& ends, std::byte* between) {
  CUDA_MEMCPY3D first = piece, second = piece;
  first.dstXInBytes = first.dstY = first.dstZ = 0;
  first.dstMemoryType = CU_MEMORYTYPE_HOST;
  first.dstHost = between;
  first.dstPitch = piece.WidthInBytes;
  first.dstHeight = piece.Height;
  second.srcXInBytes = second.srcY = second.srcZ = 0;
  second.srcMemoryType = CU_MEMORYTYPE_HOST;
  second.srcHost = between;
  second.srcPitch = piece.WidthInBytes;
  second.srcHeight = piece.Height;
  const CUresult error = in_copy_stream(ends.source, [&](Stream& stream) { return copy_volume(stream, first, Completion::host_safe); });
  if (error != CUDA_SUCCESS) return error;
  return in_copy_stream(ends.destination, [&](Stream& stream) { return copy_volume(stream, second, Completion::host_safe); });
}

}  // namespace

std::optional<ApartEnds> ends_of(const BoxCopy& box) {
  if (box.size.is_empty()) return std::nullopt;
  const CopySide destination{box.destination.address, box.destination.named}, source{box.source.address, box.source.named};
  if (destination.named == Named::host || source.named == Named::host) return std::nullopt;
  const auto to = box.destination.extent(box.size), from = box.source.extent(box.size);
  if (!to || !from || session_reaching({destination, *to}, {source, *from})) return std::nullopt;
  return apart(session_holding(destination.address), session_holding(source.address));
}

std::optional<ApartEnds> ends_of(const CUDA_MEMCPY3D& copy) {
  if (BoxSize{copy.WidthInBytes, copy.Height, copy.Depth}.is_empty()) return std::nullopt;
  return apart(session_of_end(copy.dstMemoryType, copy.dstArray, copy.dstDevice), session_of_end(copy.srcMemoryType, copy.srcArray, copy.srcDevice));
}

CUresult copy_apart(CUDA_MEMCPY3D volume, const ApartEnds& ends) {
  if (volume.srcLOD != 0 || volume.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  // What 0 means depends on the size of the whole.
  if (volume.srcPitch == 0) volume.srcPitch = volume.srcXInBytes + volume.WidthInBytes;
  if (volume.dstPitch == 0) volume.dstPitch = volume.dstXInBytes + volume.WidthInBytes;
  if (volume.srcHeight == 0) volume.srcHeight = volume.srcY + volume.Height;
  if (volume.dstHeight == 0) volume.dstHeight = volume.dstY + volume.Height;
  const BoxSize most = piece_of(volume);
  const std::unique_ptr<std::byte[]> between(new (std::nothrow) std::byte[most.width * most.height * most.depth]);
  if (between == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  for (std::uint64_t z = 0; z < volume.Depth; z += most.depth) {
    for (std::uint64_t y = 0; y < volume.Height; y += most.height) {
      for (std::uint64_t x = 0; x < volume.WidthInBytes; x += most.width) {
        const CUDA_MEMCPY3D piece = part_of(volume, {x, y, z}, most);
        if (const CUresult error = copy_piece(piece, ends, between.get()); error != CUDA_SUCCESS) return error;
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::forward
