// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Memory Management", copies; and "API synchronization behavior" for who waits when.
#include <cstring>
#include <vector>

#include "broker/cpudriver/api/copy_description.hpp"
#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/memory/memory_map.hpp"
#include "broker/cpudriver/streams/commands.hpp"

using namespace mpsshim::cpudriver;

namespace {

// Pageable sources up to this size are taken at the call; larger ones, and pageable destinations, are waited for.
constexpr std::size_t kStagedBytes = 64 * 1024;

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

CUresult copy_and_wait(const StreamPtr& stream, const Copy& copy) {
  const CUresult checked = copy.check();
  if (checked != CUDA_SUCCESS || copy.box.is_empty()) return checked;
  Scheduler::get().wait_for_windows();
  return Scheduler::get().submit_and_wait(stream, as_operation(copy));
}

CUresult copy_from_staging(const StreamPtr& stream, Copy copy) {
  const auto* bytes = reinterpret_cast<const std::byte*>(copy.source.address);
  auto staged = std::make_shared<std::vector<std::byte>>(bytes, bytes + copy.box.width);
  copy.source.address = address_of(staged->data());
  Operation operation = as_operation(copy);
  operation.run = [copy, staged] { return copy.run(); };
  Scheduler::get().wait_for_windows();
  Scheduler::get().submit(stream, std::move(operation));
  return CUDA_SUCCESS;
}

CUresult copy_async(const StreamPtr& stream, const Copy& copy) {
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult checked = copy.check();
  if (checked != CUDA_SUCCESS || copy.box.is_empty()) return checked;
  if (!copy.destination.is_device) return copy_and_wait(stream, copy);
  if (!copy.source.is_device) {
    const bool is_small = copy.box.width <= kStagedBytes && copy.box.height == 1 && copy.box.depth == 1;
    return is_small ? copy_from_staging(stream, copy) : copy_and_wait(stream, copy);
  }
  Scheduler::get().wait_for_windows();
  Scheduler::get().submit(stream, as_operation(copy));
  return CUDA_SUCCESS;
}

// Device to device does not wait on the host.
CUresult copy_sync(const Copy& copy) {
  const bool has_host_side = !copy.destination.is_device || !copy.source.is_device;
  const auto is_pinned = [](const BoxPlace& place) {
    const auto range = MemoryMap::get().containing(place.address);
    return range && range->is_host();
  };
  const StreamPtr stream = stream_of(nullptr);
  if (has_host_side || is_pinned(copy.destination) || is_pinned(copy.source)) return copy_and_wait(stream, copy);
  return copy_async(stream, copy);
}

// A side that the call's name says is device memory must be just that.
CUresult named_device(const BoxPlace& place, std::size_t bytes) { return place.is_device || bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

}  // namespace

CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
  return entry(Needs::context, [&] { return copy_sync(Copy::linear(dst, src, ByteCount)); });
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
  return entry(needs_on(hStream), [&] { return copy_async(stream_of(hStream), Copy::linear(dst, src, ByteCount)); });
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  return entry(Needs::context, [&] {
    const Copy copy = Copy::linear(dstDevice, address_of(srcHost), ByteCount);
    const CUresult named = named_device(copy.destination, ByteCount);
    return named == CUDA_SUCCESS ? copy_sync(copy) : named;
  });
}

CUresult CUDAAPI cuMemcpyDtoH(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return entry(Needs::context, [&] {
    const Copy copy = Copy::linear(address_of(dstHost), srcDevice, ByteCount);
    const CUresult named = named_device(copy.source, ByteCount);
    return named == CUDA_SUCCESS ? copy_sync(copy) : named;
  });
}

CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return entry(Needs::context, [&] {
    const Copy copy = Copy::linear(dstDevice, srcDevice, ByteCount);
    const bool named = copy.destination.is_device && copy.source.is_device;
    return named || ByteCount == 0 ? copy_sync(copy) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount, CUstream hStream) {
  return entry(needs_on(hStream), [&] {
    const Copy copy = Copy::linear(dstDevice, address_of(srcHost), ByteCount);
    const CUresult named = named_device(copy.destination, ByteCount);
    return named == CUDA_SUCCESS ? copy_async(stream_of(hStream), copy) : named;
  });
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return entry(needs_on(hStream), [&] {
    const Copy copy = Copy::linear(address_of(dstHost), srcDevice, ByteCount);
    const CUresult named = named_device(copy.source, ByteCount);
    return named == CUDA_SUCCESS ? copy_async(stream_of(hStream), copy) : named;
  });
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return entry(needs_on(hStream), [&] {
    const Copy copy = Copy::linear(dstDevice, srcDevice, ByteCount);
    const bool named = copy.destination.is_device && copy.source.is_device;
    return named || ByteCount == 0 ? copy_async(stream_of(hStream), copy) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemcpy2D(const CUDA_MEMCPY2D* pCopy) { return cuMemcpy2DUnaligned(pCopy); }

CUresult CUDAAPI cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* pCopy) {
  return entry(Needs::context, [&] {
    Copy copy;
    const CUresult understood = read_copy(pCopy, copy);
    return understood == CUDA_SUCCESS ? copy_sync(copy) : understood;
  });
}

CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  return entry(needs_on(hStream), [&] {
    Copy copy;
    const CUresult understood = read_copy(pCopy, copy);
    return understood == CUDA_SUCCESS ? copy_async(stream_of(hStream), copy) : understood;
  });
}

CUresult CUDAAPI cuMemcpy3D(const CUDA_MEMCPY3D* pCopy) {
  return entry(Needs::context, [&] {
    Copy copy;
    const CUresult understood = read_copy(pCopy, copy);
    return understood == CUDA_SUCCESS ? copy_sync(copy) : understood;
  });
}

CUresult CUDAAPI cuMemcpy3DAsync(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  return entry(needs_on(hStream), [&] {
    Copy copy;
    const CUresult understood = read_copy(pCopy, copy);
    return understood == CUDA_SUCCESS ? copy_async(stream_of(hStream), copy) : understood;
  });
}
