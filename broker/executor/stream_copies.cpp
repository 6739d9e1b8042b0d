// SPDX-License-Identifier: Apache-2.0
// How a stream's copies and fills are issued.
#include "broker/executor/stream_queue.hpp"

namespace mpsshim::broker {

void StreamQueue::issue_copy(const CopyOp& copy) {
  const ScopedCall call(context_.session, "cuMemcpyAsync", {"bytes", copy.size_bytes});
  const std::lock_guard lock(issue_lock());
  const CUstream stream = handle();
  CUresult result = CUDA_SUCCESS;
  switch (copy.kind) {
    case CopyKind::device_to_device: result = driver()->cuMemcpyDtoDAsync_v2(copy.destination, copy.source, copy.size_bytes, stream); break;
    case CopyKind::host_to_device:
      result = driver()->cuMemcpyHtoDAsync_v2(copy.destination, reinterpret_cast<const void*>(copy.source), copy.size_bytes, stream);
      break;
    case CopyKind::device_to_host:
      result = driver()->cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(copy.destination), copy.source, copy.size_bytes, stream);
      break;
    case CopyKind::host_to_host: result = driver()->cuMemcpyAsync(copy.destination, copy.source, copy.size_bytes, stream); break;
  }
  context_.check(result, "cuMemcpyAsync");
  submitted(1);
}

void StreamQueue::issue_copy_box(const CopyBoxOp& copy) {
  const ScopedCall call(context_.session, "cuMemcpy3DAsync", {"bytes", copy.width * copy.height * copy.depth});
  const auto describe = [&](auto& description) {
    const auto host = [](const CopyBoxOp::Side& side) { return side.is_host ? reinterpret_cast<void*>(side.address) : nullptr; };
    const auto type = [](const CopyBoxOp::Side& side) { return side.is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; };
    description.srcMemoryType = type(copy.source);
    description.srcHost = host(copy.source);
    description.srcDevice = copy.source.is_host ? 0 : copy.source.address;
    description.srcPitch = copy.source.pitch;
    description.dstMemoryType = type(copy.destination);
    description.dstHost = host(copy.destination);
    description.dstDevice = copy.destination.is_host ? 0 : copy.destination.address;
    description.dstPitch = copy.destination.pitch;
    description.WidthInBytes = copy.width;
    description.Height = copy.height;
  };
  CUresult result = CUDA_SUCCESS;
  const std::lock_guard lock(issue_lock());
  if (copy.depth == 1) {
    CUDA_MEMCPY2D plane{};
    describe(plane);
    result = driver()->cuMemcpy2DAsync_v2(&plane, handle());
  } else {
    CUDA_MEMCPY3D volume{};
    describe(volume);
    volume.srcHeight = copy.source.rows;
    volume.dstHeight = copy.destination.rows;
    volume.Depth = copy.depth;
    result = driver()->cuMemcpy3DAsync_v2(&volume, handle());
  }
  context_.check(result, "cuMemcpy3DAsync");
  submitted(1);
}

void StreamQueue::issue_fill(const FillOp& fill) {
  const ScopedCall call(context_.session, "cuMemsetAsync", {"bytes", fill.width * fill.height * fill.element_bytes});
  const std::lock_guard lock(issue_lock());
  const CUstream stream = handle();
  const bool is_flat = fill.height == 1;
  CUresult result = CUDA_SUCCESS;
  switch (fill.element_bytes) {
    case 1: {
      const auto value = static_cast<unsigned char>(fill.value);
      result = is_flat ? driver()->cuMemsetD8Async(fill.destination, value, fill.width, stream)
                       : driver()->cuMemsetD2D8Async(fill.destination, fill.pitch_bytes, value, fill.width, fill.height, stream);
      break;
    }
    case 2: {
      const auto value = static_cast<unsigned short>(fill.value);
      result = is_flat ? driver()->cuMemsetD16Async(fill.destination, value, fill.width, stream)
                       : driver()->cuMemsetD2D16Async(fill.destination, fill.pitch_bytes, value, fill.width, fill.height, stream);
      break;
    }
    default:
      result = is_flat ? driver()->cuMemsetD32Async(fill.destination, fill.value, fill.width, stream)
                       : driver()->cuMemsetD2D32Async(fill.destination, fill.pitch_bytes, fill.value, fill.width, fill.height, stream);
  }
  context_.check(result, "cuMemsetAsync");
  submitted(1);
}

}  // namespace mpsshim::broker
