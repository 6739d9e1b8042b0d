// SPDX-License-Identifier: Apache-2.0
// Memory fills (CUDA Driver API manual, "Memory Management"): all of cuMemsetD8/16/32 and cuMemsetD2D8/16/32 are one record.
#include "gen/api_declarations.hpp"
#include "interposer/forward/across_sessions.hpp"
#include "interposer/forward/memory/copy.hpp"
#include "interposer/forward/memory/peer_pieces.hpp"
#include "interposer/forward/memory/sync_memops.hpp"
#include "interposer/local/call_session.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

struct Fill {
  std::uint64_t destination;
  std::size_t pitch_bytes;
  std::uint32_t value;
  std::uint32_t element_bytes;
  std::size_t width;
  std::size_t height;
};

// Bytes from the first element's to the last one's end; false if they do not fit in 64 bits.
bool extent_of(const Fill& fill, std::uint64_t& bytes) {
  std::uint64_t row = 0, rows = 0;
  if (__builtin_mul_overflow(fill.width, static_cast<std::size_t>(fill.element_bytes), &row)) return false;
  if (fill.height == 1) {
    bytes = row;
    return true;
  }
  if (fill.pitch_bytes < row || fill.pitch_bytes % fill.element_bytes != 0) return false;
  return !__builtin_mul_overflow(fill.pitch_bytes, fill.height - 1, &rows) && !__builtin_add_overflow(rows, row, &bytes);
}

CUresult post_fill(Fill fill, Stream& stream, bool host_waits) {
  if (fill.width == 0 || fill.height == 0) return CUDA_SUCCESS;
  std::uint64_t bytes = 0;
  if (fill.destination % fill.element_bytes != 0 || !extent_of(fill, bytes)) return CUDA_ERROR_INVALID_VALUE;
  Space space{};
  if (const CUresult error = classify(fill.destination, bytes, Named::device, space); error != CUDA_SUCCESS) return error;
  const CUresult error = post_work<proto::FillRecord>(stream, 0, [&](proto::FillRecord& record, std::byte*) {
    record = proto::FillRecord{fill.destination, fill.pitch_bytes, fill.width, fill.height, fill.value, fill.element_bytes};
  });
  // Only host memory can be looked at by the host before the stream's next wait.
  if (error != CUDA_SUCCESS || !host_waits || space == Space::device) return error;
  return Streams::instance().wait_for_own_work(stream);
}

// In the current context's NULL stream, which reaches another device's memory where that has been allowed.
CUresult fill_now(const Fill& fill) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const bool is_devices = has_several_sessions() && session_holding(fill.destination);
  const ActingSession acting(is_devices ? current_session() : ActingSession::index());
  if (is_devices && *session_holding(fill.destination) != ActingSession::index()) {
    if (!PeerPieces::instance().reaches(fill.destination, 1)) return CUDA_ERROR_INVALID_VALUE;
  }
  return in_default_stream([&](Stream& stream) { return SyncMemops::instance().finish(post_fill(fill, stream, true), stream); });
}

CUresult fill_later(const Fill& fill, CUstream handle) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(handle);
  return stream != nullptr ? post_fill(fill, *stream, false) : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N) { return fill_now({dstDevice, 0, uc, 1, N, 1}); }
CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N) { return fill_now({dstDevice, 0, us, 2, N, 1}); }
CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N) { return fill_now({dstDevice, 0, ui, 4, N, 1}); }
CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height) {
  return fill_now({dstDevice, dstPitch, uc, 1, Width, Height});
}
CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height) {
  return fill_now({dstDevice, dstPitch, us, 2, Width, Height});
}
CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height) {
  return fill_now({dstDevice, dstPitch, ui, 4, Width, Height});
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
  return fill_later({dstDevice, 0, uc, 1, N, 1}, hStream);
}
CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) {
  return fill_later({dstDevice, 0, us, 2, N, 1}, hStream);
}
CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
  return fill_later({dstDevice, 0, ui, 4, N, 1}, hStream);
}
CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height, CUstream hStream) {
  return fill_later({dstDevice, dstPitch, uc, 1, Width, Height}, hStream);
}
CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height, CUstream hStream) {
  return fill_later({dstDevice, dstPitch, us, 2, Width, Height}, hStream);
}
CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height, CUstream hStream) {
  return fill_later({dstDevice, dstPitch, ui, 4, Width, Height}, hStream);
}

}  // namespace mpsshim::interposer::api
