// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/memory/checked_memory.hpp"

#include <algorithm>
#include <iterator>

#include "broker/executor/base/array_bytes.hpp"
#include "broker/executor/memory/memory_map.hpp"
#include "broker/executor/memory/session_arrays.hpp"

namespace mpsshim::broker {

namespace {

using proto::MemorySpace;

constexpr std::uint64_t kMostElementBytes = 16;  // four channels of four bytes; a block of the compressed formats

bool exceeds(std::uint64_t from, std::uint64_t count, std::uint64_t all) { return from > all || count > all - from; }

// Arrays without a height, or a depth, have one row, or slice.
bool lies_in_array(const CUDA_ARRAY3D_DESCRIPTOR& array, const std::uint64_t (&offset)[3], const BoxSize& size) {
  const std::uint64_t element = element_bytes_of(array.Format, array.NumChannels);
  const std::uint64_t blocks = element == 0 ? 2 : 1;  // planes that lie below each other are as much again at most
  std::uint64_t width = 0;
  if (__builtin_mul_overflow(array.Width, element == 0 ? kMostElementBytes : element, &width)) return false;
  return !exceeds(offset[0], size.width, width) && !exceeds(offset[1], size.height, blocks * std::max<std::uint64_t>(array.Height, 1)) &&
         !exceeds(offset[2], size.depth, std::max<std::uint64_t>(array.Depth, 1));
}

// From the first to the last byte of a plane of texels.
bool plane_bytes(std::uint64_t width, std::uint64_t height, std::uint64_t pitch, std::uint32_t format, std::uint32_t channels, std::uint64_t& bytes) {
  const std::uint64_t element = element_bytes_of(format, channels);
  std::uint64_t row = 0;
  if (__builtin_mul_overflow(width, element == 0 ? kMostElementBytes : element, &row)) return false;
  if (__builtin_mul_overflow(std::max<std::uint64_t>(height, 1) - 1, pitch, &bytes)) return false;
  return !__builtin_add_overflow(bytes, row, &bytes);
}

bool is_empty(const BoxSize& size) { return size.width == 0 || size.height == 0 || size.depth == 0; }

}  // namespace

struct CheckedMemory::ArrayEnd {
  MemorySpace space;
  std::uint64_t place;  // an array's id, or an address
  std::uint64_t pitch, rows;
  const std::uint64_t (&offset)[3];
};

std::optional<CheckedRange> CheckedMemory::range(MemorySpace space, std::uint64_t address, std::uint64_t size_bytes) const {
  switch (space) {
    case MemorySpace::device:
      return memory_.owns_device(address, size_bytes) ? std::optional(CheckedRange(address, size_bytes, false)) : std::nullopt;
    case MemorySpace::registered_host:
      return memory_.owns_pinned(address, size_bytes) ? std::optional(CheckedRange(address, size_bytes, true)) : std::nullopt;
    case MemorySpace::staging: {
      const std::optional<CUdeviceptr> staged = memory_.segments().staging(address, size_bytes);
      return staged ? std::optional(CheckedRange(*staged, size_bytes, true)) : std::nullopt;
    }
    case MemorySpace::array:
    case MemorySpace::pageable: return std::nullopt;
  }
  return std::nullopt;
}

std::optional<CheckedRange> CheckedMemory::anywhere(std::uint64_t address, std::uint64_t size_bytes) const {
  const std::optional<CheckedRange> found = range(MemorySpace::device, address, size_bytes);
  return found ? found : range(MemorySpace::registered_host, address, size_bytes);
}

// `size` is not empty. Where there is one row, or one slice, what leads to the next is of no account, and is made what it always may be.
std::optional<CheckedBox> CheckedMemory::box(MemorySpace space, std::uint64_t address, const BoxSize& size, std::uint64_t pitch,
                                             std::uint64_t rows) const {
  if (size.depth == 1) rows = size.height;
  if (size.height == 1 && size.depth == 1) pitch = size.width;
  if (pitch < size.width || rows < size.height) return std::nullopt;
  std::uint64_t before = 0, bytes = 0;
  if (__builtin_mul_overflow(size.depth - 1, rows, &before) || __builtin_add_overflow(before, size.height - 1, &before) ||
      __builtin_mul_overflow(before, pitch, &bytes) || __builtin_add_overflow(bytes, size.width, &bytes)) {
    return std::nullopt;
  }
  // Not even where the last slice would end, which a driver may reckon with.
  std::uint64_t slices = 0;
  if (__builtin_mul_overflow(rows, size.depth, &slices) || __builtin_mul_overflow(slices, pitch, &slices)) return std::nullopt;
  const std::optional<CheckedRange> found = range(space, address, bytes);
  return found ? std::optional(CheckedBox(*found, pitch, rows)) : std::nullopt;
}

Checked<CheckedCopy> CheckedMemory::copy(const proto::CopyRecord& record) const {
  if (record.size_bytes == 0) return Checked<CheckedCopy>::nothing();
  const auto destination = range(record.destination_space, record.destination, record.size_bytes);
  const auto source = range(record.source_space, record.source, record.size_bytes);
  if (!destination || !source) return CUDA_ERROR_INVALID_VALUE;
  return CheckedCopy(*destination, *source);
}

Checked<CheckedBoxCopy> CheckedMemory::copy(const BoxSize& size, const std::optional<CheckedBox>& destination,
                                            const std::optional<CheckedBox>& source) const {
  if (!destination || !source) return CUDA_ERROR_INVALID_VALUE;
  return CheckedBoxCopy(*destination, *source, size);
}

Checked<CheckedBoxCopy> CheckedMemory::copy(const proto::CopyBoxRecord& record) const {
  const BoxSize size{record.width, record.height, record.depth};
  if (is_empty(size)) return Checked<CheckedBoxCopy>::nothing();
  return copy(size, box(record.destination_space, record.destination, size, record.destination_pitch, record.destination_rows),
              box(record.source_space, record.source, size, record.source_pitch, record.source_rows));
}

Checked<CheckedBoxCopy> CheckedMemory::copy(const proto::GraphCopy& node) const {
  const auto is_linear = [](MemorySpace space) { return space == MemorySpace::device || space == MemorySpace::registered_host; };
  if (!is_linear(node.destination_space) || !is_linear(node.source_space)) {
    return Checked<CheckedBoxCopy>::malformed("a copy node names an unknown space");
  }
  const BoxSize size{node.width_bytes, node.height, node.depth};
  if (is_empty(size)) return CUDA_ERROR_INVALID_VALUE;
  return copy(size, box(node.destination_space, node.destination, size, node.destination_pitch_bytes, node.destination_rows),
              box(node.source_space, node.source, size, node.source_pitch_bytes, node.source_rows));
}

Refusal CheckedMemory::find_end(const ArrayEnd& given, const BoxSize& size, CUarray& array, std::optional<CheckedBox>& linear) const {
  if (given.space == MemorySpace::array) {
    const proto::Known<SessionArray> found = arrays_.table().find(proto::ArrayId{given.place});
    if (!found || found->array == nullptr) return {nullptr, CUDA_ERROR_INVALID_HANDLE};
    if (!found->shape) return {nullptr, CUDA_ERROR_NOT_SUPPORTED};  // the driver has not told it
    if (!lies_in_array(*found->shape, given.offset, size)) return {nullptr, CUDA_ERROR_INVALID_VALUE};
    array = found->array;
    return {};
  }
  if (given.offset[0] != 0 || given.offset[1] != 0 || given.offset[2] != 0) return {"an end in linear memory has offsets", CUDA_SUCCESS};
  linear = box(given.space, given.place, size, given.pitch, given.rows);
  return linear ? Refusal{} : Refusal{nullptr, CUDA_ERROR_INVALID_VALUE};
}

Checked<CheckedArrayCopy> CheckedMemory::copy(const proto::ArrayCopyRecord& record) const {
  if (record.destination_space != MemorySpace::array && record.source_space != MemorySpace::array) {
    return Checked<CheckedArrayCopy>::malformed("neither of its ends is an array");
  }
  const BoxSize size{record.width, record.height, record.depth};
  if (is_empty(size)) return Checked<CheckedArrayCopy>::nothing();
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = size.width;
  copy.Height = size.height;
  copy.Depth = size.depth;
  std::optional<CheckedBox> to, from;
  const ArrayEnd destination{record.destination_space, record.destination, record.destination_pitch, record.destination_rows,
                             record.destination_offset};
  const ArrayEnd source{record.source_space, record.source, record.source_pitch, record.source_rows, record.source_offset};
  if (const Refusal refusal = find_end(destination, size, copy.dstArray, to)) return refusal;
  if (const Refusal refusal = find_end(source, size, copy.srcArray, from)) return refusal;
  if (to) {
    copy.dstMemoryType = to->is_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    if (to->is_host()) copy.dstHost = reinterpret_cast<void*>(to->address());  // NOLINT(performance-no-int-to-ptr)
    if (!to->is_host()) copy.dstDevice = to->address();
    copy.dstPitch = to->pitch();
    copy.dstHeight = to->rows();
  } else {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstXInBytes = record.destination_offset[0];
    copy.dstY = record.destination_offset[1];
    copy.dstZ = record.destination_offset[2];
  }
  if (from) {
    copy.srcMemoryType = from->is_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    if (from->is_host()) copy.srcHost = reinterpret_cast<const void*>(from->address());  // NOLINT(performance-no-int-to-ptr)
    if (!from->is_host()) copy.srcDevice = from->address();
    copy.srcPitch = from->pitch();
    copy.srcHeight = from->rows();
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcXInBytes = record.source_offset[0];
    copy.srcY = record.source_offset[1];
    copy.srcZ = record.source_offset[2];
  }
  return CheckedArrayCopy(copy);
}

Checked<CheckedFill> CheckedMemory::fill(const proto::FillRecord& record) const {
  if (record.width == 0 || record.height == 0) return Checked<CheckedFill>::nothing();
  std::uint64_t row = 0, rows = 0, bytes = 0;
  if (__builtin_mul_overflow(record.width, record.element_bytes, &row)) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t pitch = record.height == 1 ? row : record.pitch_bytes;
  if (pitch < row || __builtin_mul_overflow(record.height - 1, pitch, &rows) || __builtin_add_overflow(rows, row, &bytes) ||
      !anywhere(record.destination, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CheckedFill fill;
  fill.destination_ = record.destination;
  fill.pitch_bytes_ = pitch;
  fill.width_ = record.width;
  fill.height_ = record.height;
  fill.value_ = record.value;
  fill.element_bytes_ = record.element_bytes;
  fill.size_bytes_ = bytes;
  return fill;
}

Checked<CheckedWord> CheckedMemory::word(std::uint64_t address, bool is_long) const {
  const std::uint32_t size_bytes = is_long ? 8 : 4;
  const std::optional<CheckedRange> place = address % size_bytes == 0 ? anywhere(address, size_bytes) : std::nullopt;
  if (!place) return CUDA_ERROR_INVALID_VALUE;
  return CheckedWord(address, size_bytes, place->is_host());
}

Checked<CheckedSharedRecord> CheckedMemory::shared_record(const proto::StreamWaitSharedEventRecord& record) const {
  using Slot = proto::SharedEventSlot;
  if (record.slot % alignof(Slot) != 0 || !range(MemorySpace::registered_host, record.slot, sizeof(Slot))) return CUDA_ERROR_INVALID_VALUE;
  return CheckedSharedRecord(reinterpret_cast<const Slot*>(record.slot), record.number);
}

// Variables of modules and buffers of external memory lie in no lease: wholly in one.
bool CheckedMemory::may_be_texels(std::uint64_t address, std::uint64_t size_bytes) const {
  return anywhere(address, 1) && (memory_.is_leased(address, size_bytes) || anywhere(address, size_bytes));
}

Checked<CheckedResource> CheckedMemory::resource(const CUDA_RESOURCE_DESC& given, proto::ArrayId id) const {
  const proto::Known<SessionArray> array = arrays_.table().find(id);
  CUDA_RESOURCE_DESC found{};
  found.resType = given.resType;
  found.flags = given.flags;
  switch (given.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      if (!array || array->array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      found.res.array.hArray = array->array;
      return CheckedResource(found);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      if (!array || array->mipmapped == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      found.res.mipmap.hMipmappedArray = array->mipmapped;
      return CheckedResource(found);
    case CU_RESOURCE_TYPE_LINEAR:
      found.res.linear = given.res.linear;
      if (!may_be_texels(given.res.linear.devPtr, given.res.linear.sizeInBytes)) return CUDA_ERROR_INVALID_VALUE;
      return CheckedResource(found);
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& plane = given.res.pitch2D;
      std::uint64_t bytes = 0;
      found.res.pitch2D = plane;
      const bool fits = plane_bytes(plane.width, plane.height, plane.pitchInBytes, plane.format, plane.numChannels, bytes);
      if (!fits || !may_be_texels(plane.devPtr, bytes)) return CUDA_ERROR_INVALID_VALUE;
      return CheckedResource(found);
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

Checked<CheckedBinding> CheckedMemory::binding(const proto::ReferenceSetRecord& record, bool is_surface) const {
  if (is_surface && record.source != proto::ReferenceSource::array) return CUDA_ERROR_INVALID_VALUE;
  const proto::Known<SessionArray> array = arrays_.table().find(record.array);
  CheckedBinding found;
  switch (record.source) {
    case proto::ReferenceSource::nothing: return found;
    case proto::ReferenceSource::linear:
      found.linear_ = range(MemorySpace::device, record.address, record.size_bytes);
      return found.linear_ ? Checked(found) : CUDA_ERROR_INVALID_VALUE;
    case proto::ReferenceSource::rows: {
      std::uint64_t bytes = 0;
      if (!plane_bytes(record.width, record.height, record.size_bytes, record.format, record.channels, bytes)) return CUDA_ERROR_INVALID_VALUE;
      found.linear_ = range(MemorySpace::device, record.address, bytes);
      found.rows_ = CUDA_ARRAY_DESCRIPTOR{record.width, record.height, static_cast<CUarray_format>(record.format), record.channels};
      found.pitch_ = record.size_bytes;
      return found.linear_ ? Checked(found) : CUDA_ERROR_INVALID_VALUE;
    }
    case proto::ReferenceSource::array: found.array_ = array ? array->array : nullptr; break;
    case proto::ReferenceSource::mipmapped_array: found.mipmapped_ = array ? array->mipmapped : nullptr; break;
  }
  return found.names_array() ? Checked(found) : CUDA_ERROR_INVALID_HANDLE;
}

Checked<CheckedExternalBuffer> CheckedMemory::part(const proto::ExternalMapRecord& record) const {
  const ImportedMemoryRef memory = memory_.external().find(record.memory);
  if (memory == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (record.size_bytes == 0 || exceeds(record.offset, record.size_bytes, memory->size_bytes())) return CUDA_ERROR_INVALID_VALUE;
  return CheckedExternalBuffer(memory, record.offset, record.size_bytes);
}

Checked<CheckedExternalArray> CheckedMemory::part(const proto::ExternalMapArrayRecord& record) const {
  const ImportedMemoryRef memory = memory_.external().find(record.memory);
  if (memory == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC description{};
  description.offset = record.offset;
  description.arrayDesc = {record.width, record.height, record.depth, static_cast<CUarray_format>(record.format), record.channels, record.flags};
  description.numLevels = record.levels;
  std::uint64_t bytes = 0;
  if (record.levels == 0 || record.offset >= memory->size_bytes() || !array_bytes(description.arrayDesc, record.levels, 0, bytes) ||
      bytes > memory->size_bytes() - record.offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CheckedExternalArray(memory, description);
}

}  // namespace mpsshim::broker
