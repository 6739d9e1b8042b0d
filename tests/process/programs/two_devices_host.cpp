// SPDX-License-Identifier: Apache-2.0
// Host memory that both devices' kernels use: pinned, registered, managed.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/process/programs/two_devices.hpp"

namespace mpsshim::test {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kWholePages = (kBytes + kPage - 1) / kPage * kPage;

unsigned* words_of(void* memory) { return static_cast<unsigned*>(memory); }
CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

void require_in(const void* memory, unsigned factor, const char* what) {
  std::vector<unsigned> found(kWords);
  std::memcpy(found.data(), memory, kBytes);
  require_index(found, factor, what);
}

// The side's kernel writes it, the host reads it.
void require_written(const Side& side, CUdeviceptr device, const void* host, unsigned factor, const char* what) {
  side.use();
  side.launch_fill(device, factor);
  CU(cuStreamSynchronize(side.stream));
  require_in(host, factor, what);
}

void* pinned_by(const Side& side, std::size_t bytes = kBytes) {
  side.use();
  void* memory = nullptr;
  CU(cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  std::memset(memory, 0, bytes);
  return memory;
}

void free_by(const Side& side, void* memory) {
  side.use();
  CU(cuMemFreeHost(memory));
}

// Pinned memory of the one, used by the other.
void use_pinned(const Side& owner, const Side& other, void* memory, unsigned factor) {
  other.use();
  CUdeviceptr device = 0;
  CU(cuMemHostGetDevicePointer(&device, memory, 0));
  require(device == address_of(memory), "another device is told another address");
  require_written(other, device, memory, factor, "the other device's kernel");
  require_written(owner, device, memory, factor + 1, "the owner's kernel");
  // Copies in the other's stream, and its words.
  other.use();
  CU(cuMemcpyHtoDAsync(other.data, memory, kBytes, other.stream));
  other.launch_add(other.data, 5);
  CU(cuMemcpyDtoHAsync(memory, other.data, kBytes, other.stream));
  CU(cuStreamWriteValue32(other.stream, address_of(memory), 4711, 0));
  CU(cuStreamWaitValue32(other.stream, address_of(memory), 4711, CU_STREAM_WAIT_VALUE_EQ));
  CU(cuStreamSynchronize(other.stream));
  for (unsigned i = 1; i < kWords; ++i) require(words_of(memory)[i] == i * (factor + 1) + 5, "copies in the other device's stream");
  require(words_of(memory)[0] == 4711, "a word that the other device's stream has written");
}

}  // namespace

void host_memory(Sides& sides) {
  for (const unsigned by : {0u, 1u}) {
    const Side &owner = sides[by], &other = sides[1 - by];
    for (unsigned round = 0; round < 10; ++round) {
      void* const memory = pinned_by(owner);
      void* const large = pinned_by(owner, std::size_t{24} << 20);
      use_pinned(owner, other, memory, 3 + round);
      require_written(other, address_of(large) + (std::size_t{23} << 20), static_cast<char*>(large) + (std::size_t{23} << 20), 9,
                      "a large allocation");
      free_by(owner, memory);
      free_by(owner, large);
    }
  }
}

void registered_memory(Sides& sides) {
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(kPage, kWholePages), std::free);
  for (const unsigned by : {0u, 1u}) {
    const Side &owner = sides[by], &other = sides[1 - by];
    std::memset(memory.get(), 0, kWholePages);
    owner.use();
    CU(cuMemHostRegister(memory.get(), kWholePages, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    for (const Side* side : {&other, &owner}) {
      side->use();
      CUdeviceptr device = 0;
      CU(cuMemHostGetDevicePointer(&device, memory.get(), 0));
      require_written(*side, device, memory.get(), 3 + by, "a kernel on registered memory");
    }
    owner.use();
    CU(cuMemHostUnregister(memory.get()));
    require_in(memory.get(), 3 + by, "memory that is no longer registered");
  }
}

// Pinned memory is given back, and memory no longer registered, behind the other device's work. Natively that work has an illegal address.
void host_memory_in_use(Sides& sides) {
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(kPage, kWholePages), std::free);
  for (const unsigned by : {0u, 1u}) {
    const Side &owner = sides[by], &other = sides[1 - by];
    void* const pinned = pinned_by(owner);
    other.use();
    other.launch_fill(address_of(pinned), 7);
    free_by(owner, pinned);
    CU(cuMemHostRegister(memory.get(), kWholePages, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    CUdeviceptr device = 0;
    other.use();
    CU(cuStreamSynchronize(other.stream));
    CU(cuMemHostGetDevicePointer(&device, memory.get(), 0));
    other.launch_fill(device, 11 + by);
    owner.use();
    CU(cuMemHostUnregister(memory.get()));
    require_in(memory.get(), 11 + by, "memory that is no longer registered");
  }
}

void managed(Sides& sides) {
  for (const unsigned by : {0u, 1u}) {
    const Side &owner = sides[by], &other = sides[1 - by];
    owner.use();
    CUdeviceptr memory = 0;
    CU(cuMemAllocManaged(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
    const void* const host = reinterpret_cast<const void*>(memory);  // NOLINT(performance-no-int-to-ptr)
    require_written(other, memory, host, 3, "the other device's kernel on managed memory");
    owner.use();
    owner.launch_fill(memory, 4);
    CU(cuStreamSynchronize(owner.stream));
    other.use();
    other.launch_add(memory, 1);
    CU(cuStreamSynchronize(other.stream));
    for (unsigned i = 0; i < kWords; ++i)
      require(static_cast<const unsigned*>(host)[i] == 4 * i + 1, "what both devices have made of managed memory");
    // Advice and prefetches in the other's stream.
    CUmemLocation place{};
    place.type = CU_MEM_LOCATION_TYPE_DEVICE;
    place.id = other.device;
    CU(cuMemAdvise_v2(memory, kBytes, CU_MEM_ADVISE_SET_ACCESSED_BY, place));
    CU(cuMemPrefetchAsync_v2(memory, kBytes, place, 0, other.stream));
    CU(cuStreamSynchronize(other.stream));
    int last = -99;
    CU(cuMemRangeGetAttribute(&last, sizeof last, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, memory, kBytes));
    require(last == other.device, "managed memory was prefetched elsewhere last");
    require_written(other, memory, host, 6, "managed memory after a prefetch");
    other.use();
    CU(cuMemFree(memory));
  }
}

void prefer_host(CUdeviceptr memory) {
  CUmemLocation host{};
  host.type = CU_MEM_LOCATION_TYPE_HOST;
  CU(cuMemAdvise_v2(memory, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
}

void require_words(CUdeviceptr memory, unsigned factor, unsigned addend, const char* what) {
  const auto* const words = reinterpret_cast<const unsigned*>(memory);  // NOLINT(performance-no-int-to-ptr)
  for (unsigned i = 0; i < kWords; ++i) require(words[i] == factor * i + addend, what);
}

// That lives there, once on the device before: 3 i + 1.
CUdeviceptr managed_on_host(const Side& side) {
  CUdeviceptr memory = 0;
  CU(cuMemAllocManaged(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
  side.launch_fill(memory, 3);
  CU(cuStreamSynchronize(side.stream));
  prefer_host(memory);
  side.launch_add(memory, 1);
  CU(cuStreamSynchronize(side.stream));
  require_words(memory, 3, 1, "managed memory that the host prefers");
  return memory;
}

// What was there before the program worked on the second device.
void host_memory_before(Sides& sides) {
  sides[0].make(0);
  void* const pinned = pinned_by(sides[0]);
  CUdeviceptr managed = 0;
  CU(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
  const CUdeviceptr on_host = managed_on_host(sides[0]);
  sides[1].make(1);
  use_pinned(sides[0], sides[1], pinned, 3);
  sides[1].launch_add(on_host, 1);
  CU(cuStreamSynchronize(sides[1].stream));
  require_words(on_host, 3, 2, "managed memory that was on the host before there was a second device");
  prefer_host(on_host);
  require_written(sides[1], on_host, reinterpret_cast<const void*>(on_host), 6, "the same, advised again");  // NOLINT(performance-no-int-to-ptr)
  CU(cuMemFree(on_host));
  require_written(sides[1], managed, reinterpret_cast<const void*>(managed), 5, "managed memory");  // NOLINT(performance-no-int-to-ptr)
  CU(cuMemFree(managed));
  free_by(sides[1], pinned);
}

// What a fault of the second device costs a program that uses both in common.
void fault_in_common(Sides& sides) {
  sides[1].use();
  void* pinned = nullptr;
  CU(cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  CUevent event = nullptr;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  int are_peers = 0;
  CU(cuDeviceCanAccessPeer(&are_peers, sides[0].device, sides[1].device));
  sides[0].use();
  if (are_peers != 0) CU(cuCtxEnablePeerAccess(sides[1].context, 0));
  sides[1].use();
  sides[1].launch_fill(0x10, 1);
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(sides[1].stream));
  // What names the device that had it.
  CUdeviceptr more = 0;
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&more, kBytes));
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuEventRecord(event, sides[1].stream));
  sides[0].use();
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFreeHost(pinned));
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemsetD32(sides[1].data, 1, kWords));
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(sides[1].stream));
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyPeer(sides[0].data, sides[0].context, sides[1].data, sides[1].context, kBytes));
  // What does not.
  CU(cuCtxSynchronize());
  if (are_peers != 0) {  // what was reached before is reached still
    sides[0].launch_fill(sides[1].data, 3);
    CU(cuStreamSynchronize(sides[0].stream));
  }
  CU(cuMemAlloc(&more, kBytes));
  sides[0].launch_fill(more, 3);
  CU(cuStreamSynchronize(sides[0].stream));
  require_index(sides[0].read(more), 3, "the device that had no fault");
  CU(cuMemFree(more));
  void* fresh = nullptr;
  CU(cuMemHostAlloc(&fresh, kBytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  for (void* memory : {pinned, fresh}) {
    sides[0].launch_fill(reinterpret_cast<CUdeviceptr>(memory), 5);
    CU(cuStreamSynchronize(sides[0].stream));
    std::vector<unsigned> found(kWords);
    std::memcpy(found.data(), memory, kBytes);
    require_index(found, 5, "host memory after a fault");
  }
  CU(cuMemFreeHost(fresh));
}

// What waits for work that has faulted is never made: the device that waits has the error, too.
void fault_awaited(Sides& sides) {
  sides[1].use();
  const PinnedWord gate;
  CUevent event = nullptr;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CU(cuStreamWaitValue32(sides[1].stream, gate.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  sides[1].launch_fill(0x10, 1);
  CU(cuEventRecord(event, sides[1].stream));
  sides[0].use();
  CU(cuStreamWaitEvent(sides[0].stream, event, 0));
  sides[0].launch_add(sides[0].data, 1);
  gate.set(1);
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(sides[0].stream));
  CU_GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

// A library's __managed__ variable is one for all devices.
void managed_variables(Sides& sides) {
  for (unsigned round = 0; round < 3; ++round) {
    const Side &first = sides[round % 2], &second = sides[1 - round % 2];
    first.use();
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    CU(cuLibraryLoadData(&library, kManagedPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CU(cuLibraryGetKernel(&kernel, library, "count"));
    for (unsigned i = 0; i < 6; ++i) {
      const Side& side = i % 2 == 0 ? first : second;
      side.use();
      CUfunction function = nullptr;
      CU(cuKernelGetFunction(&function, kernel));
      CUdeviceptr out = side.data, counter = 0;
      void* arguments[] = {&out};
      CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, side.stream, arguments, nullptr));
      CU(cuStreamSynchronize(side.stream));
      size_t bytes = 0;
      CU(cuLibraryGetManaged(&counter, &bytes, library, "counter"));
      require(bytes == sizeof(unsigned), "a managed variable is of another size");
      const unsigned found = *reinterpret_cast<const volatile unsigned*>(counter);  // NOLINT(performance-no-int-to-ptr)
      require(found == 6 + i, "a managed variable that both devices count up is " + std::to_string(found));
      require(side.read(side.data)[0] == 6 + i, "what a kernel has read of a managed variable");
    }
    CU(cuLibraryUnload(library));
  }
}

}  // namespace mpsshim::test
