// SPDX-License-Identifier: Apache-2.0
// The functions behind which two- and three-dimensional copies stand (CUDA Driver API manual, "Memory Management").
// Descriptions that name an array go to forward/arrays.
#include <optional>

#include "gen/api_declarations.hpp"
#include "interposer/forward/across_sessions.hpp"
#include "interposer/forward/arrays/array_copy.hpp"
#include "interposer/forward/memory/box_across.hpp"
#include "interposer/forward/memory/box_copy.hpp"
#include "interposer/forward/memory/reaching.hpp"
#include "interposer/forward/memory/sync_memops.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// One side as a description gives it.
struct Described {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  std::uint64_t pitch;  // 0: as wide as what is copied
  std::uint64_t rows;   // 0: as high
  std::uint64_t x, y, z;
};

CUresult read_side(const Described& given, const BoxSize& size, BoxSide& side) {
  std::uint64_t base = 0;
  switch (given.type) {
    case CU_MEMORYTYPE_HOST:
      base = reinterpret_cast<std::uintptr_t>(given.host);
      side.named = Named::host;
      break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
      base = given.device;
      side.named = given.type == CU_MEMORYTYPE_DEVICE ? Named::device : Named::by_address;
      break;
    case CU_MEMORYTYPE_ARRAY: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  std::uint64_t right = 0, below = 0, rows_before = 0, offset = 0;
  if (__builtin_add_overflow(given.x, size.width, &right) || __builtin_add_overflow(given.y, size.height, &below)) return CUDA_ERROR_INVALID_VALUE;
  side.pitch = given.pitch != 0 ? given.pitch : right;
  side.rows = given.rows != 0 ? given.rows : below;
  int max_pitch = 0;
  const proto::DeviceFacts* facts = device_facts(session_device());
  if (facts == nullptr || device_attribute(*facts, CU_DEVICE_ATTRIBUTE_MAX_PITCH, max_pitch) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
  // A single row has no pitch to speak of.
  const bool has_rows = size.height > 1 || size.depth > 1;
  if (has_rows && (right > side.pitch || side.pitch > static_cast<std::uint64_t>(max_pitch))) return CUDA_ERROR_INVALID_VALUE;
  if (size.depth > 1 && below > side.rows) return CUDA_ERROR_INVALID_VALUE;
  const bool fits = !__builtin_mul_overflow(given.z, side.rows, &rows_before) && !__builtin_add_overflow(rows_before, given.y, &rows_before) &&
                    !__builtin_mul_overflow(rows_before, side.pitch, &offset) && !__builtin_add_overflow(offset, given.x, &offset) &&
                    !__builtin_add_overflow(base, offset, &side.address);
  return fits && base != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult read_box(const Described& source, const Described& destination, BoxCopy& box) {
  const CUresult error = read_side(source, box.size, box.source);
  return error == CUDA_SUCCESS ? read_side(destination, box.size, box.destination) : error;
}

CUresult read(const CUDA_MEMCPY2D* copy, BoxCopy& box) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  box.size = {copy->WidthInBytes, copy->Height, 1};
  return read_box({copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcPitch, 0, copy->srcXInBytes, copy->srcY, 0},
                  {copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstPitch, 0, copy->dstXInBytes, copy->dstY, 0}, box);
}

// CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER.
template <typename Description>
CUresult read_volume(const Description& copy, BoxCopy& box) {
  if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  box.size = {copy.WidthInBytes, copy.Height, copy.Depth};
  return read_box({copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcPitch, copy.srcHeight, copy.srcXInBytes, copy.srcY, copy.srcZ},
                  {copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstPitch, copy.dstHeight, copy.dstXInBytes, copy.dstY, copy.dstZ}, box);
}
CUresult read(const CUDA_MEMCPY3D* copy, BoxCopy& box) { return copy != nullptr ? read_volume(*copy, box) : CUDA_ERROR_INVALID_VALUE; }

// All contexts of a session are of one device.
CUresult check_contexts(CUcontext first, CUcontext second) {
  return find_context_or_current(first) && find_context_or_current(second) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult read(const CUDA_MEMCPY3D_PEER* copy, BoxCopy& box) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = check_contexts(copy->srcContext, copy->dstContext);
  return error == CUDA_SUCCESS ? read_volume(*copy, box) : error;
}

// As a copy of a volume. Nothing: it is no description at all.
std::optional<CUDA_MEMCPY3D> as_volume(const CUDA_MEMCPY3D* copy) { return copy != nullptr ? std::optional(*copy) : std::nullopt; }
std::optional<CUDA_MEMCPY3D> as_volume(const CUDA_MEMCPY2D* copy) {
  if (copy == nullptr) return std::nullopt;
  CUDA_MEMCPY3D volume{};
  volume.srcXInBytes = copy->srcXInBytes;
  volume.srcY = copy->srcY;
  volume.srcMemoryType = copy->srcMemoryType;
  volume.srcHost = copy->srcHost;
  volume.srcDevice = copy->srcDevice;
  volume.srcArray = copy->srcArray;
  volume.srcPitch = copy->srcPitch;
  volume.dstXInBytes = copy->dstXInBytes;
  volume.dstY = copy->dstY;
  volume.dstMemoryType = copy->dstMemoryType;
  volume.dstHost = copy->dstHost;
  volume.dstDevice = copy->dstDevice;
  volume.dstArray = copy->dstArray;
  volume.dstPitch = copy->dstPitch;
  volume.WidthInBytes = copy->WidthInBytes;
  volume.Height = copy->Height;
  volume.Depth = 1;
  return volume;
}
std::optional<CUDA_MEMCPY3D> as_volume(const CUDA_MEMCPY3D_PEER* copy) {
  if (copy == nullptr || check_contexts(copy->srcContext, copy->dstContext) != CUDA_SUCCESS) return std::nullopt;
  CUDA_MEMCPY3D volume{};
  volume.srcXInBytes = copy->srcXInBytes;
  volume.srcY = copy->srcY;
  volume.srcZ = copy->srcZ;
  volume.srcLOD = copy->srcLOD;
  volume.srcMemoryType = copy->srcMemoryType;
  volume.srcHost = copy->srcHost;
  volume.srcDevice = copy->srcDevice;
  volume.srcArray = copy->srcArray;
  volume.srcPitch = copy->srcPitch;
  volume.srcHeight = copy->srcHeight;
  volume.dstXInBytes = copy->dstXInBytes;
  volume.dstY = copy->dstY;
  volume.dstZ = copy->dstZ;
  volume.dstLOD = copy->dstLOD;
  volume.dstMemoryType = copy->dstMemoryType;
  volume.dstHost = copy->dstHost;
  volume.dstDevice = copy->dstDevice;
  volume.dstArray = copy->dstArray;
  volume.dstPitch = copy->dstPitch;
  volume.dstHeight = copy->dstHeight;
  volume.WidthInBytes = copy->WidthInBytes;
  volume.Height = copy->Height;
  volume.Depth = copy->Depth;
  return volume;
}

template <typename Description>
CUresult copy(Stream& stream, const Description* description, Completion completion) {
  if (const auto volume = as_volume(description); volume && names_array(*volume)) return copy_with_array(stream, *volume, completion);
  BoxCopy box;
  const CUresult error = read(description, box);
  return error == CUDA_SUCCESS ? copy_box(stream, box, completion) : error;
}

// Between memory of two sessions: the one that reaches both makes the copy, behind what the default streams of both have. Nothing: it is not such
// a copy.
template <typename Description>
std::optional<std::uint32_t> prepare_across(const Description* description, CUresult& error) {
  BoxCopy box;
  if (read(description, box) != CUDA_SUCCESS || box.size.is_empty()) return std::nullopt;
  const CopySide destination{box.destination.address, box.destination.named}, source{box.source.address, box.source.named};
  const auto to = box.destination.extent(box.size), from = box.source.extent(box.size);
  if (!to || !from || !is_across(destination, source)) return std::nullopt;
  const auto by = session_reaching({destination, *to}, {source, *from});
  if (by) error = finish_default_streams(destination, source);
  return by;
}

// The sessions of both ends, if neither reaches the other's.
template <typename Description>
std::optional<ApartEnds> ends_apart(const Description* description, CUDA_MEMCPY3D& volume) {
  const auto found = as_volume(description);
  if (!found) return std::nullopt;
  volume = *found;
  BoxCopy box;
  if (names_array(volume)) return ends_of(volume);
  return read(description, box) == CUDA_SUCCESS ? ends_of(box) : std::nullopt;
}

template <typename Description>
CUresult copy_in_default_stream(const Description* description) {
  return in_default_stream([&](Stream& stream) { return SyncMemops::instance().finish(copy(stream, description, Completion::host_safe), stream); });
}

// By the session that reaches both ends, which nobody changes meanwhile.
template <typename Description>
CUresult copy_where_reached(const Description* description) {
  CUresult error = CUDA_SUCCESS;
  const auto by = prepare_across(description, error);
  if (error != CUDA_SUCCESS) return error;
  const ActingSession acting(by.value_or(ActingSession::index()));
  error = copy_in_default_stream(description);
  if (!by || error != CUDA_SUCCESS) return error;
  // As CUDA: what comes later on either device comes behind it.
  Stream* const stream = Streams::instance().default_stream();
  return stream != nullptr ? Streams::instance().synchronize(*stream) : CUDA_ERROR_OUT_OF_MEMORY;
}

template <typename Description>
CUresult copy_now(const Description* description) {
  CUresult error = begin();
  if (error != CUDA_SUCCESS) return error;
  if (!has_several_sessions()) return copy_in_default_stream(description);
  CUDA_MEMCPY3D volume{};
  std::optional<ApartEnds> ends;
  {
    const Reaching reaching;
    ends = ends_apart(description, volume);
    if (!ends) return copy_where_reached(description);
  }
  error = begin_in_current_order();
  if (error == CUDA_SUCCESS) error = finish_default_stream(ends->source);
  if (error == CUDA_SUCCESS) error = finish_default_stream(ends->destination);
  return error == CUDA_SUCCESS ? copy_apart(volume, *ends) : error;
}

template <typename Description>
CUresult copy_later(const Description* description, CUstream handle) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!has_several_sessions()) return copy(*stream, description, Completion::as_posted);
  CUDA_MEMCPY3D volume{};
  std::optional<ApartEnds> ends;
  {
    const Reaching reaching;
    ends = ends_apart(description, volume);
    if (!ends) return copy(*stream, description, Completion::as_posted);
  }
  if (stream->is_captured.load(std::memory_order_relaxed)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const CUresult error = Streams::instance().synchronize(*stream);
  return error == CUDA_SUCCESS ? copy_apart(volume, *ends) : error;
}

}  // namespace

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* pCopy) { return copy_now(pCopy); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* pCopy) { return copy_now(pCopy); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* pCopy, CUstream hStream) { return copy_later(pCopy, hStream); }
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* pCopy) { return copy_now(pCopy); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* pCopy, CUstream hStream) { return copy_later(pCopy, hStream); }
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* pCopy) { return copy_now(pCopy); }
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) { return copy_later(pCopy, hStream); }

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const CUresult error = check_contexts(dstContext, srcContext);
  return error == CUDA_SUCCESS ? api::cuMemcpyDtoD_v2(dstDevice, srcDevice, ByteCount) : error;
}
CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
                           CUstream hStream) {
  if (const CUresult error = begin_on(hStream); error != CUDA_SUCCESS) return error;
  const CUresult error = check_contexts(dstContext, srcContext);
  return error == CUDA_SUCCESS ? api::cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream) : error;
}

}  // namespace mpsshim::interposer::api

namespace mpsshim::interposer::forward {

CUresult copy_volume(Stream& stream, const CUDA_MEMCPY3D& description, Completion completion) { return api::copy(stream, &description, completion); }

}  // namespace mpsshim::interposer::forward
