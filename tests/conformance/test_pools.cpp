// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation and memory pools.
#include <array>
#include <cstring>
#include <vector>

#include "driver_under_test.hpp"
#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

#define NEEDS_POOLS() \
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no memory pools: they are made in the client")

CUmemPoolProps pool_on_device() {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return props;
}

struct OwnStream {
  CUstream handle = nullptr;
  explicit OwnStream(unsigned flags = CU_STREAM_NON_BLOCKING) { OK(CU(cuStreamCreate)(&handle, flags)); }
  ~OwnStream() { CU(cuStreamDestroy)(handle); }
};

cuuint64_t pool_level(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = ~cuuint64_t{0};
  OK(CU(cuMemPoolGetAttribute)(pool, attribute, &value));
  return value;
}

void set_threshold(CUmemoryPool pool, cuuint64_t bytes) { OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes)); }

}  // namespace

TEST_CASE("stream-ordered memory is used like any other", "[forwarded]") {
  const DeviceContext context;
  NEEDS_POOLS();
  const OwnStream stream;
  CUdeviceptr memory = 0;
  OK(CU(cuMemAllocAsync)(&memory, 4000, stream.handle));
  CHECK(memory % 256 == 0);
  OK(CU(cuMemsetD32Async)(memory, 0x1234, 1000, stream.handle));
  std::array<unsigned, 1000> words{};
  OK(CU(cuMemcpyDtoHAsync)(words.data(), memory, sizeof words, stream.handle));
  OK(CU(cuStreamSynchronize)(stream.handle));
  CHECK(words.front() == 0x1234);
  CHECK(words.back() == 0x1234);
  CHECK(CU(cuMemsetD32Async)(memory, 0, size_t{1} << 30, stream.handle) == CUDA_ERROR_INVALID_VALUE);  // past the pool's memory
  OK(CU(cuMemFreeAsync)(memory, stream.handle));
  OK(CU(cuStreamSynchronize)(stream.handle));

  OK(CU(cuMemAllocAsync)(&memory, 100, nullptr));  // the NULL stream
  OK(CU(cuMemsetD8)(memory, 7, 100));
  OK(CU(cuMemFree)(memory));  // which waits
}

TEST_CASE("stream-ordered allocation refuses what is wrong", "[forwarded]") {
  const DeviceContext context;
  NEEDS_POOLS();
  const OwnStream stream;
  CUdeviceptr memory = 0;
  CHECK(CU(cuMemAllocAsync)(nullptr, 16, stream.handle) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemAllocAsync)(&memory, 0, stream.handle));
  OK(CU(cuMemFreeAsync)(memory, stream.handle));
  CHECK(CU(cuMemAllocAsync)(&memory, size_t{1} << 60, stream.handle) == CUDA_ERROR_OUT_OF_MEMORY);
  OK(CU(cuMemFreeAsync)(0, stream.handle));
  CHECK(CU(cuMemFreeAsync)(0x1234, stream.handle) == CUDA_ERROR_INVALID_VALUE);

  OK(CU(cuMemAllocAsync)(&memory, 4096, stream.handle));
  CHECK(CU(cuMemFreeAsync)(memory + 512, stream.handle) == CUDA_ERROR_INVALID_VALUE);  // not its base
  OK(CU(cuMemFreeAsync)(memory, stream.handle));
  if (refuses_dead_handles()) {
    CHECK(CU(cuMemFreeAsync)(memory, stream.handle) == CUDA_ERROR_INVALID_VALUE);  // again
    CHECK(CU(cuMemFree)(memory) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU(cuMemAllocFromPoolAsync)(&memory, 16, nullptr, stream.handle) == CUDA_ERROR_INVALID_VALUE);
  }
  CUdeviceptr ordinary = 0;
  OK(CU(cuMemAlloc)(&ordinary, 4096));
  CHECK(CU(cuMemFreeAsync)(ordinary + 512, stream.handle) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFreeAsync)(ordinary, stream.handle));
  OK(CU(cuStreamSynchronize)(stream.handle));
  if (refuses_dead_handles()) CHECK(CU(cuMemFree)(ordinary) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a stream has what it freed again at once", "[forwarded]") {
  const DeviceContext context;
  NEEDS_POOLS();
  const OwnStream stream;
  CUmemoryPool pool = nullptr;
  const CUmemPoolProps props = pool_on_device();
  OK(CU(cuMemPoolCreate)(&pool, &props));
  CUdeviceptr first = 0;
  OK(CU(cuMemAllocFromPoolAsync)(&first, size_t{1} << 20, pool, stream.handle));
  for (unsigned round = 0; round < 200; ++round) {
    OK(CU(cuMemsetD32Async)(first, round, (size_t{1} << 20) / 4, stream.handle));
    OK(CU(cuMemFreeAsync)(first, stream.handle));
    OK(CU(cuMemAllocFromPoolAsync)(&first, size_t{1} << 20, pool, stream.handle));
  }
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) <= size_t{64} << 20);
  OK(CU(cuMemFreeAsync)(first, stream.handle));
  OK(CU(cuStreamSynchronize)(stream.handle));
  OK(CU(cuMemPoolDestroy)(pool));
}

TEST_CASE("memory freed in one stream is another's only behind its use", "[forwarded]") {
  const DeviceContext context;
  NEEDS_POOLS();
  const LoadedImage image("kernels.fatbin");
  const OwnStream busy, other;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = pool_on_device();
  OK(CU(cuMemPoolCreate)(&pool, &props));
  set_threshold(pool, ~cuuint64_t{0});
  constexpr size_t kBytes = size_t{8} << 20;
  // Many rounds: long fills of memory freed at once behind them, while another stream allocates and writes its own.
  for (unsigned round = 0; round < 20; ++round) {
    CUdeviceptr mine = 0, its = 0;
    OK(CU(cuMemAllocFromPoolAsync)(&mine, kBytes, pool, busy.handle));
    for (int fill = 0; fill < 10; ++fill) OK(CU(cuMemsetD32Async)(mine, 0xdead0000u + round, kBytes / 4, busy.handle));
    OK(CU(cuMemFreeAsync)(mine, busy.handle));
    OK(CU(cuMemAllocFromPoolAsync)(&its, kBytes, pool, other.handle));
    OK(CU(cuMemsetD32Async)(its, round, kBytes / 4, other.handle));
    OK(CU(cuStreamSynchronize)(other.handle));
    OK(CU(cuStreamSynchronize)(busy.handle));
    CHECK(word_at(its) == round);
    CHECK(word_at(its + kBytes - 4) == round);
    OK(CU(cuMemFreeAsync)(its, other.handle));
  }
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuMemPoolDestroy)(pool));
}

TEST_CASE("memory freed in the NULL stream is free behind the blocking streams' work", "[forwarded]") {
  const DeviceContext context;
  NEEDS_POOLS();
  const OwnStream blocking(CU_STREAM_DEFAULT), second(CU_STREAM_DEFAULT);
  constexpr size_t kBytes = size_t{8} << 20;
  for (unsigned round = 0; round < 20; ++round) {
    CUdeviceptr memory = 0, again = 0;
    OK(CU(cuMemAllocAsync)(&memory, kBytes, nullptr));
    for (int fill = 0; fill < 10; ++fill) OK(CU(cuMemsetD32Async)(memory, 0xdead0000u, kBytes / 4, blocking.handle));
    OK(CU(cuMemFreeAsync)(memory, nullptr));
    OK(CU(cuMemAllocAsync)(&again, kBytes, nullptr));
    OK(CU(cuMemsetD32Async)(again, round, kBytes / 4, second.handle));  // behind the NULL stream, and so behind the fills
    OK(CU(cuCtxSynchronize)());
    CHECK(word_at(again) == round);
    CHECK(word_at(again + kBytes - 4) == round);
    OK(CU(cuMemFreeAsync)(again, nullptr));
  }
  OK(CU(cuCtxSynchronize)());
}

TEST_CASE("memory freed in a blocking stream is free behind the NULL stream's work", "[forwarded]") {
  const DeviceContext context;
  NEEDS_POOLS();
  const OwnStream blocking(CU_STREAM_DEFAULT), other;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = pool_on_device();
  OK(CU(cuMemPoolCreate)(&pool, &props));
  set_threshold(pool, ~cuuint64_t{0});
  constexpr size_t kBytes = size_t{24} << 20;  // two of them do not fit into a segment
  for (unsigned round = 0; round < 20; ++round) {
    CUdeviceptr memory = 0, its = 0;
    OK(CU(cuMemAllocFromPoolAsync)(&memory, kBytes, pool, blocking.handle));
    for (int fill = 0; fill < 10; ++fill) OK(CU(cuMemsetD32Async)(memory, 0xdead0000u, kBytes / 4, nullptr));
    OK(CU(cuMemFreeAsync)(memory, blocking.handle));
    OK(CU(cuMemAllocFromPoolAsync)(&its, kBytes, pool, other.handle));
    OK(CU(cuMemsetD32Async)(its, round, kBytes / 4, other.handle));
    OK(CU(cuCtxSynchronize)());
    CHECK(word_at(its) == round);
    CHECK(word_at(its + kBytes - 4) == round);
    OK(CU(cuMemFreeAsync)(its, other.handle));
  }
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuMemPoolDestroy)(pool));
}

TEST_CASE("a pool counts what it holds and gives it back", "[forwarded]") {
  const DeviceContext context;
  NEEDS_POOLS();
  const OwnStream stream;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = pool_on_device();
  OK(CU(cuMemPoolCreate)(&pool, &props));
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 0);
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  int flag = -1;
  for (const auto attribute : {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                               CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    OK(CU(cuMemPoolGetAttribute)(pool, attribute, &flag));
    CHECK(flag == 1);
    flag = 0;
    OK(CU(cuMemPoolSetAttribute)(pool, attribute, &flag));
    flag = -1;
    OK(CU(cuMemPoolGetAttribute)(pool, attribute, &flag));
    CHECK(flag == 0);
  }
  set_threshold(pool, ~cuuint64_t{0});

  CUdeviceptr memory = 0;
  OK(CU(cuMemAllocFromPoolAsync)(&memory, size_t{4} << 20, pool, stream.handle));
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == size_t{4} << 20);
  const cuuint64_t reserved = pool_level(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  CHECK(reserved >= size_t{4} << 20);
  OK(CU(cuMemFreeAsync)(memory, stream.handle));
  OK(CU(cuStreamSynchronize)(stream.handle));
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == size_t{4} << 20);
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == reserved);  // below the threshold
  cuuint64_t zero = 0, one = 1;
  OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
  CHECK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &zero) == CUDA_ERROR_INVALID_VALUE);

  OK(CU(cuMemPoolTrimTo)(pool, 0));
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);

  set_threshold(pool, 0);
  OK(CU(cuMemAllocFromPoolAsync)(&memory, size_t{4} << 20, pool, stream.handle));
  OK(CU(cuMemFreeAsync)(memory, stream.handle));
  OK(CU(cuStreamSynchronize)(stream.handle));
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);  // a wait gives back what is above the threshold
  OK(CU(cuMemPoolDestroy)(pool));
}

TEST_CASE("a device has a default pool and a current one", "[forwarded]") {
  const DeviceContext context;
  NEEDS_POOLS();
  const OwnStream stream;
  CUmemoryPool standard = nullptr, current = nullptr, own = nullptr;
  OK(CU(cuDeviceGetDefaultMemPool)(&standard, 0));
  OK(CU(cuDeviceGetMemPool)(&current, 0));
  CHECK(standard == current);
  CHECK(CU(cuDeviceGetDefaultMemPool)(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetDefaultMemPool)(&standard, 99) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuMemPoolDestroy)(standard) == CUDA_ERROR_INVALID_VALUE);

  CUmemPoolProps props = pool_on_device();
  OK(CU(cuMemPoolCreate)(&own, &props));
  CHECK(own != standard);
  CUmemAccessDesc access{props.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(CU(cuMemPoolSetAccess)(own, &access, 1));
  int version = 0;
  OK(CU(cuDriverGetVersion)(&version));
  if (version >= 13000) {  // the same by place and kind
    CUmemLocation here = props.location;
    OK(call("cuMemGetDefaultMemPool", &current, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    CHECK(current == standard);
    OK(call("cuMemSetMemPool", &here, CU_MEM_ALLOCATION_TYPE_PINNED, own));
    OK(call("cuMemGetMemPool", &current, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    CHECK(current == own);
    OK(CU(cuDeviceSetMemPool)(0, standard));
  }
  OK(CU(cuDeviceSetMemPool)(0, own));
  OK(CU(cuDeviceGetMemPool)(&current, 0));
  CHECK(current == own);
  CUdeviceptr memory = 0;
  OK(CU(cuMemAllocAsync)(&memory, 64, stream.handle));
  CUmemoryPool its = nullptr;
  OK(CU(cuPointerGetAttribute)(&its, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
  CHECK(its == own);
  CHECK(pool_level(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) != 0);
  // Destroyed while it has an allocation: that one goes on, the default pool is the current one.
  OK(CU(cuMemPoolDestroy)(own));
  OK(CU(cuDeviceGetMemPool)(&current, 0));
  CHECK(current == standard);
  OK(CU(cuMemsetD32Async)(memory, 5, 16, stream.handle));
  OK(CU(cuStreamSynchronize)(stream.handle));
  CHECK(word_at(memory) == 5);
  OK(CU(cuMemFreeAsync)(memory, stream.handle));
  OK(CU(cuStreamSynchronize)(stream.handle));

  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  OK(CU(cuMemPoolGetAccess)(&flags, standard, &location));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  int supported = 0;
  OK(CU(cuDeviceGetAttribute)(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
  CHECK(supported == 1);
}

TEST_CASE("a stream that has ended leaves what it freed to others", "[forwarded]") {
  const DeviceContext context;
  NEEDS_POOLS();
  CUmemoryPool pool = nullptr;
  CUmemPoolProps props = pool_on_device();
  OK(CU(cuMemPoolCreate)(&pool, &props));
  set_threshold(pool, ~cuuint64_t{0});
  for (int round = 0; round < 50; ++round) {
    const OwnStream stream;
    CUdeviceptr memory = 0;
    OK(CU(cuMemAllocFromPoolAsync)(&memory, size_t{20} << 20, pool, stream.handle));
    OK(CU(cuMemsetD8Async)(memory, 1, size_t{20} << 20, stream.handle));
    OK(CU(cuMemFreeAsync)(memory, stream.handle));
    if (round % 2 == 0) OK(CU(cuStreamSynchronize)(stream.handle));
  }
  OK(CU(cuCtxSynchronize)());
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) <= size_t{320} << 20);
  OK(CU(cuMemPoolTrimTo)(pool, 0));
  CHECK(pool_level(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
  OK(CU(cuMemPoolDestroy)(pool));
}
