// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/arrays/array_copy.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "interposer/forward/arrays/arrays.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::size_t kBounceBytes = 4u << 20;  // a multiple of every element's size

struct Size {
  std::uint64_t width = 0;  // bytes
  std::uint64_t height = 0;
  std::uint64_t depth = 0;
};

struct ArraySide {
  Space space = Space::device;
  std::uint64_t place = 0;  // an array's id, or the address of the first byte
  std::uint64_t pitch = 0;  // of linear memory
  std::uint64_t rows = 0;
  std::uint64_t offset[3] = {};  // into an array: bytes, rows, slices

  // The side from (x, y, z) of the copy on.
  [[nodiscard]] ArraySide from(std::uint64_t x, std::uint64_t y, std::uint64_t z) const {
    ArraySide part = *this;
    if (is_array()) {
      part.offset[0] += x;
      part.offset[1] += y;
      part.offset[2] += z;
    } else {
      part.place += (z * rows + y) * pitch + x;
    }
    return part;
  }
  [[nodiscard]] bool is_array() const { return space == Space::array; }
  [[nodiscard]] bool is_pageable() const { return space == Space::pageable; }
  [[nodiscard]] bool is_host() const { return space == Space::registered_host || space == Space::pageable; }
};

// One side as a description gives it.
struct Described {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  std::uint64_t pitch, rows;  // 0: as wide, and as high, as what is copied
  std::uint64_t x, y, z;
};

CUresult read_array(const Described& given, const Size& size, ArraySide& side) {
  Array* array = Arrays::instance().resolve(given.array);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  side.space = Space::array;
  side.place = array->id.value;
  side.offset[0] = given.x;
  side.offset[1] = given.y;
  side.offset[2] = given.z;
  const CUDA_ARRAY3D_DESCRIPTOR& descriptor = array->descriptor;
  const std::uint64_t bytes = element_bytes(descriptor);
  if (bytes == 0) return CUDA_SUCCESS;  // the driver knows its blocks
  const auto exceeds = [](std::uint64_t from, std::uint64_t count, std::uint64_t all) { return from > all || count > all - from; };
  const bool fits = !exceeds(given.x, size.width, descriptor.Width * bytes) &&
                    !exceeds(given.y, size.height, std::max<std::size_t>(descriptor.Height, 1)) &&
                    !exceeds(given.z, size.depth, std::max<std::size_t>(descriptor.Depth, 1));
  return fits && given.x % bytes == 0 && size.width % bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult read_linear(const Described& given, const Size& size, Named named, ArraySide& side) {
  const std::uint64_t base = given.type == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uintptr_t>(given.host) : given.device;
  std::uint64_t right = 0, below = 0, before = 0, offset = 0, last = 0, extent = 0;
  if (__builtin_add_overflow(given.x, size.width, &right) || __builtin_add_overflow(given.y, size.height, &below)) return CUDA_ERROR_INVALID_VALUE;
  side.pitch = given.pitch != 0 ? given.pitch : right;
  side.rows = given.rows != 0 ? given.rows : below;
  if ((size.height > 1 || size.depth > 1) && right > side.pitch) return CUDA_ERROR_INVALID_VALUE;
  if (size.depth > 1 && below > side.rows) return CUDA_ERROR_INVALID_VALUE;
  const bool fits = !__builtin_mul_overflow(given.z, side.rows, &before) && !__builtin_add_overflow(before, given.y, &before) &&
                    !__builtin_mul_overflow(before, side.pitch, &offset) && !__builtin_add_overflow(offset, given.x, &offset) &&
                    !__builtin_add_overflow(base, offset, &side.place) && !__builtin_mul_overflow(size.depth - 1, side.rows, &last) &&
                    !__builtin_add_overflow(last, size.height - 1, &last) && !__builtin_mul_overflow(last, side.pitch, &extent) &&
                    !__builtin_add_overflow(extent, size.width, &extent);
  return fits ? classify(side.place, extent, named, side.space) : CUDA_ERROR_INVALID_VALUE;
}

CUresult read_side(const Described& given, const Size& size, ArraySide& side) {
  switch (given.type) {
    case CU_MEMORYTYPE_ARRAY: return read_array(given, size, side);
    case CU_MEMORYTYPE_HOST: return read_linear(given, size, Named::host, side);
    case CU_MEMORYTYPE_DEVICE: return read_linear(given, size, Named::device, side);
    case CU_MEMORYTYPE_UNIFIED: return read_linear(given, size, Named::by_address, side);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult post(Stream& stream, const ArraySide& destination, const ArraySide& source, const Size& size) {
  return post_work<proto::ArrayCopyRecord>(stream, 0, [&](proto::ArrayCopyRecord& record, std::byte*) {
    record.destination = destination.place;
    record.source = source.place;
    record.destination_pitch = destination.pitch;
    record.source_pitch = source.pitch;
    record.destination_rows = destination.rows;
    record.source_rows = source.rows;
    std::copy(std::begin(destination.offset), std::end(destination.offset), record.destination_offset);
    std::copy(std::begin(source.offset), std::end(source.offset), record.source_offset);
    record.width = size.width;
    record.height = size.height;
    record.depth = size.depth;
    record.destination_space = destination.space;
    record.source_space = source.space;
  });
}

// Pinned memory of the library's own, made when first needed. One copy at a time.
class Bounce {
 public:
  [[nodiscard]] static Bounce& instance() {
    return PerSession<Bounce>::get([] { return new Bounce(); });
  }
  Mutex mutex;
  [[nodiscard]] CUresult get(std::byte*& bytes) REQUIRES(mutex) {
    if (memory_ == nullptr) {
      if (const CUresult error = PinnedMemory::instance().allocate(kBounceBytes, 0, nullptr, memory_); error != CUDA_SUCCESS) return error;
    }
    bytes = static_cast<std::byte*>(memory_);
    return CUDA_SUCCESS;
  }

 private:
  void* memory_ GUARDED_BY(mutex) = nullptr;
};

// Rows between pageable memory and the bounce buffer, where they lie one behind the other.
void copy_rows(std::byte* packed, const ArraySide& pageable, const Size& piece, bool is_upload) {
  for (std::uint64_t y = 0; y < piece.height; ++y) {
    auto* row = reinterpret_cast<std::byte*>(pageable.place + y * pageable.pitch);  // NOLINT(performance-no-int-to-ptr)
    std::byte* at = packed + y * piece.width;
    std::memcpy(is_upload ? at : row, is_upload ? row : at, piece.width);
  }
}

CUresult copy_piece(Stream& stream, std::byte* packed, const ArraySide& destination, const ArraySide& source, const Size& piece) {
  const bool is_upload = source.is_pageable();
  ArraySide bounce;
  bounce.space = Space::registered_host;
  bounce.place = reinterpret_cast<std::uintptr_t>(packed);
  bounce.pitch = piece.width;
  bounce.rows = piece.height;
  if (is_upload) copy_rows(packed, source, piece, true);
  CUresult error = post(stream, is_upload ? destination : bounce, is_upload ? bounce : source, piece);
  if (error == CUDA_SUCCESS) error = Streams::instance().wait_for_own_work(stream);
  if (error == CUDA_SUCCESS && !is_upload) copy_rows(packed, destination, piece, false);
  return error;
}

CUresult copy_pageable(Stream& stream, const ArraySide& destination, const ArraySide& source, const Size& size) {
  Bounce& bounce = Bounce::instance();
  const std::lock_guard lock(bounce.mutex);
  std::byte* packed = nullptr;
  if (const CUresult error = bounce.get(packed); error != CUDA_SUCCESS) return error;
  const std::uint64_t width = std::min<std::uint64_t>(size.width, kBounceBytes);
  const std::uint64_t rows = kBounceBytes / width;
  for (std::uint64_t z = 0; z < size.depth; ++z) {
    for (std::uint64_t y = 0; y < size.height; y += rows) {
      for (std::uint64_t x = 0; x < size.width; x += width) {
        const Size piece{std::min(width, size.width - x), std::min(rows, size.height - y), 1};
        if (const CUresult error = copy_piece(stream, packed, destination.from(x, y, z), source.from(x, y, z), piece); error != CUDA_SUCCESS)
          return error;
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult copy_with_array(Stream& stream, const CUDA_MEMCPY3D& copy, Completion completion) {
  const Size size{copy.WidthInBytes, copy.Height, copy.Depth};
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  if (size.width == 0 || size.height == 0 || size.depth == 0) return CUDA_SUCCESS;
  ArraySide source, destination;
  CUresult error = read_side(
      {copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcPitch, copy.srcHeight, copy.srcXInBytes, copy.srcY, copy.srcZ}, size,
      source);
  if (error == CUDA_SUCCESS) {
    error = read_side(
        {copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray, copy.dstPitch, copy.dstHeight, copy.dstXInBytes, copy.dstY, copy.dstZ},
        size, destination);
  }
  if (error != CUDA_SUCCESS) return error;
  if (source.is_pageable() || destination.is_pageable()) return copy_pageable(stream, destination, source, size);
  error = post(stream, destination, source, size);
  const bool host_sees = source.is_host() || destination.is_host();
  if (error != CUDA_SUCCESS || completion == Completion::as_posted || !host_sees) return error;
  return Streams::instance().wait_for_own_work(stream);
}

}  // namespace mpsshim::interposer::forward
