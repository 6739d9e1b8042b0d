// SPDX-License-Identifier: Apache-2.0
// Managed memory: one address for host and device, what is advised about it, what its pointers are.
#include <vector>

#include "driver_under_test.hpp"
#include "loaded_image.hpp"
#include "managed_memory.hpp"

using namespace mpsshim::test;

namespace {

constexpr size_t kManagedBytes = size_t{1} << 20;

class Managed {
 public:
  explicit Managed(size_t bytes = kManagedBytes) { OK(CU(cuMemAllocManaged)(&address_, bytes, CU_MEM_ATTACH_GLOBAL)); }
  ~Managed() { CU(cuMemFree)(address_); }
  Managed(const Managed&) = delete;
  CUdeviceptr address() const { return address_; }
  unsigned* words() const { return reinterpret_cast<unsigned*>(address_); }

 private:
  CUdeviceptr address_ = 0;
};

int range_attribute(CUdeviceptr address, size_t bytes, CUmem_range_attribute which) {
  int value = 12345;
  OK(CU(cuMemRangeGetAttribute)(&value, sizeof value, which, address, bytes));
  return value;
}

CUmemLocation on_device() { return {CU_MEM_LOCATION_TYPE_DEVICE, {0}}; }
CUmemLocation on_host() { return {CU_MEM_LOCATION_TYPE_HOST, {0}}; }

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return driver_symbol<CUresult (*)(CUdeviceptr, size_t, CUmem_advise, CUmemLocation)>("cuMemAdvise_v2")(address, bytes, advice, location);
}
CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation location, CUstream stream) {
  return driver_symbol<CUresult (*)(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream)>("cuMemPrefetchAsync_v2")(address, bytes, location, 0,
                                                                                                                      stream);
}

}  // namespace

TEST_CASE("host and device see managed memory at one address", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const Managed memory;
  for (unsigned i = 0; i < kManagedBytes / 4; ++i) memory.words()[i] = i;
  OK(CU(cuMemsetD32)(memory.address() + kManagedBytes / 2, 7, 100));
  OK(CU(cuCtxSynchronize)());
  CHECK(memory.words()[kManagedBytes / 8] == 7);
  CHECK(memory.words()[kManagedBytes / 8 - 1] == kManagedBytes / 8 - 1);
  std::vector<unsigned> copy(1000);
  OK(CU(cuMemcpyDtoH)(copy.data(), memory.address(), 4000));
  CHECK(copy[999] == 999);
  const Managed other;
  OK(CU(cuMemcpyDtoD)(other.address(), memory.address(), kManagedBytes));
  OK(CU(cuCtxSynchronize)());
  CHECK(other.words()[1234] == 1234);
  CHECK(CU(cuMemsetD8)(memory.address() + kManagedBytes - 1, 0, 2) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("managed pointers say what they are", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  const Managed memory;
  int is_managed = 0;
  unsigned type = 0;
  CUdeviceptr device = 0;
  void* host = nullptr;
  OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory.address()));
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  OK(CU(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, memory.address() + 4));
  CHECK(device == memory.address() + 4);
  OK(CU(cuPointerGetAttribute)(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, memory.address() + 4));
  CHECK(host == memory.words() + 1);
  OK(CU(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory.address()));
  CHECK(is_managed == 1);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  OK(CU(cuMemGetAddressRange)(&base, &bytes, memory.address() + 100));
  CHECK(base == memory.address());
  CHECK(bytes == kManagedBytes);
}

TEST_CASE("managed memory is allocated and freed as device memory", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  CUdeviceptr memory = 0;
  CHECK(CU(cuMemAllocManaged)(nullptr, 16, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAllocManaged)(&memory, 0, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAllocManaged)(&memory, 16, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAllocManaged)(&memory, 16, CU_MEM_ATTACH_SINGLE) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemAllocManaged)(&memory, 16, CU_MEM_ATTACH_HOST));
  CHECK(CU(cuMemFreeHost)(reinterpret_cast<void*>(memory)) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(memory));
  int managed = 0;
  OK(CU(cuDeviceGetAttribute)(&managed, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0));
  CHECK(managed == 1);
}

TEST_CASE("what is advised about managed memory is answered", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const Managed memory;
  const CUdeviceptr address = memory.address();
  CHECK(range_attribute(address, kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 0);
  CHECK(range_attribute(address, kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) == CU_DEVICE_INVALID);
  CHECK(range_attribute(address, kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == CU_DEVICE_INVALID);

  OK(advise(address, kManagedBytes / 2, CU_MEM_ADVISE_SET_READ_MOSTLY, on_device()));
  CHECK(range_attribute(address, kManagedBytes / 2, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 1);
  CHECK(range_attribute(address, kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 0);  // not all of it
  OK(advise(address, kManagedBytes, CU_MEM_ADVISE_UNSET_READ_MOSTLY, on_device()));
  CHECK(range_attribute(address, kManagedBytes / 2, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) == 0);

  OK(advise(address, kManagedBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_device()));
  CHECK(range_attribute(address, kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) == 0);
  OK(advise(address, kManagedBytes / 4, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_host()));
  CHECK(range_attribute(address, kManagedBytes / 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) == CU_DEVICE_CPU);
  CHECK(range_attribute(address, kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) == CU_DEVICE_INVALID);

  OK(advise(address, kManagedBytes, CU_MEM_ADVISE_SET_ACCESSED_BY, on_device()));
  int devices[2] = {77, 77};
  OK(CU(cuMemRangeGetAttribute)(devices, sizeof devices, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, address, kManagedBytes));
  CHECK(devices[0] == 0);
  CHECK(devices[1] == CU_DEVICE_INVALID);

  OK(prefetch(address, kManagedBytes, on_device(), stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(range_attribute(address, kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == 0);
  OK(prefetch(address, kManagedBytes, on_host(), stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(range_attribute(address, kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == CU_DEVICE_CPU);

  // By the first versions, whose places are devices' numbers.
  OK(call("cuMemAdvise", address, kManagedBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CUdevice{CU_DEVICE_CPU}));
  OK(call("cuMemPrefetchAsync", address, kManagedBytes, CUdevice{0}, stream));
  OK(CU(cuStreamSynchronize)(stream));
  int preferred = 77, prefetched = 77;
  void* answers[] = {&preferred, &prefetched};
  size_t sizes[] = {sizeof preferred, sizeof prefetched};
  CUmem_range_attribute which[] = {CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION};
  OK(CU(cuMemRangeGetAttributes)(answers, sizes, which, 2, address, kManagedBytes));
  CHECK(preferred == CU_DEVICE_CPU);
  CHECK(prefetched == 0);

  CUdeviceptr ordinary = 0;
  OK(CU(cuMemAlloc)(&ordinary, kManagedBytes));
  CHECK(prefetch(ordinary, kManagedBytes, on_device(), stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(advise(ordinary, kManagedBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, on_device()) == CUDA_ERROR_INVALID_VALUE);
  int value = 0;
  CHECK(CU(cuMemRangeGetAttribute)(&value, sizeof value, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, ordinary, kManagedBytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemRangeGetAttribute)(&value, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, kManagedBytes) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(ordinary));

  OK(CU(cuStreamAttachMemAsync)(stream, address, 0, CU_MEM_ATTACH_SINGLE));
  if (driver_kind() != DriverKind::real) CHECK(CU(cuStreamAttachMemAsync)(stream, address, 0, 0) == CUDA_ERROR_INVALID_VALUE);  // which crashes
  OK(CU(cuStreamDestroy)(stream));
}

#if CUDA_VERSION >= 13000
TEST_CASE("batches of prefetches and discards", "[forwarded][managed]") {
  const DeviceContext context;
  NEEDS_MANAGED_MEMORY();
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const Managed first, second, third;
  third.words()[7] = 77;
  CUdeviceptr addresses[] = {first.address(), second.address(), third.address()};
  size_t sizes[] = {kManagedBytes, kManagedBytes, kManagedBytes};
  CUmemLocation locations[] = {on_device(), on_host()};
  size_t indices[] = {0, 2};
  OK(CU(cuMemPrefetchBatchAsync)(addresses, sizes, 3, locations, indices, 2, 0, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(range_attribute(second.address(), kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == 0);
  CHECK(range_attribute(third.address(), kManagedBytes, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION) == CU_DEVICE_CPU);
  CHECK(third.words()[7] == 77);
  OK(CU(cuMemDiscardBatchAsync)(addresses, sizes, 2, 0, stream));
  OK(CU(cuMemDiscardAndPrefetchBatchAsync)(addresses, sizes, 2, locations, indices, 1, 0, stream));
  OK(CU(cuStreamSynchronize)(stream));
  first.words()[1] = 11;  // what is written after a discard counts
  CHECK(first.words()[1] == 11);
  size_t wrong[] = {0, 3};
  CHECK(CU(cuMemPrefetchBatchAsync)(addresses, sizes, 3, locations, wrong, 2, 0, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemPrefetchBatchAsync)(addresses, sizes, 0, locations, indices, 2, 0, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemDiscardBatchAsync)(addresses, sizes, 2, 1, stream) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr ordinary = 0;
  OK(CU(cuMemAlloc)(&ordinary, kManagedBytes));
  CHECK(CU(cuMemDiscardBatchAsync)(&ordinary, sizes, 1, 0, stream) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(ordinary));
  OK(CU(cuStreamDestroy)(stream));
}
#endif
