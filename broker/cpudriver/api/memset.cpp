// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Memory Management", cuMemset*.
#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/memory/memory_map.hpp"
#include "broker/cpudriver/streams/commands.hpp"

using namespace mpsshim::cpudriver;

namespace {

struct Elements {
  unsigned size = 1;
  std::uint32_t value = 0;
  std::size_t width = 0;  // in elements
  std::size_t height = 1;
  std::size_t pitch = 0;  // in bytes
};

CUresult fill(const StreamPtr& stream, CUdeviceptr destination, const Elements& elements) {
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Fill command;
  command.value = elements.value;
  command.element_size = elements.size;
  if (__builtin_mul_overflow(elements.width, elements.size, &command.box.width)) return CUDA_ERROR_INVALID_VALUE;
  command.box.height = elements.height;
  command.destination = {.address = destination, .row_pitch = elements.pitch, .is_device = true};
  if (elements.height > 1 && elements.pitch < command.box.width) return CUDA_ERROR_INVALID_VALUE;
  const CUresult checked = command.check();
  if (checked != CUDA_SUCCESS || command.box.is_empty()) return checked;
  Scheduler::get().wait_for_windows();
  Scheduler::get().submit(stream, as_operation(command));
  return CUDA_SUCCESS;
}

// Waits only for pinned host memory ("API synchronization behavior").
CUresult fill_sync(CUdeviceptr destination, const Elements& elements) {
  const StreamPtr stream = stream_of(nullptr);
  const CUresult result = fill(stream, destination, elements);
  const auto range = MemoryMap::get().containing(destination);
  if (result != CUDA_SUCCESS || !range || !range->is_host()) return result;
  return Scheduler::get().wait(Scheduler::get().last_of(stream));
}

}  // namespace

CUresult CUDAAPI cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  return entry(Needs::context, [&] { return fill_sync(dstDevice, {.size = 1, .value = uc, .width = N}); });
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
  return entry(needs_on(hStream), [&] { return fill(stream_of(hStream), dstDevice, {.size = 1, .value = uc, .width = N}); });
}

CUresult CUDAAPI cuMemsetD2D8(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height) {
  return entry(Needs::context, [&] { return fill_sync(dstDevice, {.size = 1, .value = uc, .width = Width, .height = Height, .pitch = dstPitch}); });
}

CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height, CUstream hStream) {
  return entry(needs_on(hStream),
               [&] { return fill(stream_of(hStream), dstDevice, {.size = 1, .value = uc, .width = Width, .height = Height, .pitch = dstPitch}); });
}

CUresult CUDAAPI cuMemsetD16(CUdeviceptr dstDevice, unsigned short us, size_t N) {
  return entry(Needs::context, [&] { return fill_sync(dstDevice, {.size = 2, .value = us, .width = N}); });
}

CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) {
  return entry(needs_on(hStream), [&] { return fill(stream_of(hStream), dstDevice, {.size = 2, .value = us, .width = N}); });
}

CUresult CUDAAPI cuMemsetD2D16(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height) {
  return entry(Needs::context, [&] { return fill_sync(dstDevice, {.size = 2, .value = us, .width = Width, .height = Height, .pitch = dstPitch}); });
}

CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height, CUstream hStream) {
  return entry(needs_on(hStream),
               [&] { return fill(stream_of(hStream), dstDevice, {.size = 2, .value = us, .width = Width, .height = Height, .pitch = dstPitch}); });
}

CUresult CUDAAPI cuMemsetD32(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
  return entry(Needs::context, [&] { return fill_sync(dstDevice, {.size = 4, .value = ui, .width = N}); });
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
  return entry(needs_on(hStream), [&] { return fill(stream_of(hStream), dstDevice, {.size = 4, .value = ui, .width = N}); });
}

CUresult CUDAAPI cuMemsetD2D32(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height) {
  return entry(Needs::context, [&] { return fill_sync(dstDevice, {.size = 4, .value = ui, .width = Width, .height = Height, .pitch = dstPitch}); });
}

CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height, CUstream hStream) {
  return entry(needs_on(hStream),
               [&] { return fill(stream_of(hStream), dstDevice, {.size = 4, .value = ui, .width = Width, .height = Height, .pitch = dstPitch}); });
}
