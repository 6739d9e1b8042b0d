// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: ranges, memory, mappings, access.
#include <vector>

#include "driver_under_test.hpp"

using namespace mpsshim::test;

namespace {

CUmemAllocationProp memory_on_device() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return prop;
}

CUmemAccessDesc access_of(CUmemAccess_flags flags) {
  CUmemAccessDesc desc{};
  desc.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  desc.flags = flags;
  return desc;
}

CUmemGenericAllocationHandle create(size_t bytes) {
  const CUmemAllocationProp prop = memory_on_device();
  CUmemGenericAllocationHandle handle = 0;
  OK(CU(cuMemCreate)(&handle, bytes, &prop, 0));
  return handle;
}

void allow(CUdeviceptr address, size_t bytes) {
  const CUmemAccessDesc desc = access_of(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(CU(cuMemSetAccess)(address, bytes, &desc, 1));
}

}  // namespace

TEST_CASE("memory is mapped into a reserved range, piece by piece", "[forwarded]") {
  const DeviceContext context;
  const CUmemAllocationProp prop = memory_on_device();
  size_t granularity = 0;
  OK(CU(cuMemGetAllocationGranularity)(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  REQUIRE(granularity == kGranule);
  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, 64 * kGranule, 0, 0, 0));
  CHECK(range % kGranule == 0);

  // As a growing segment does it.
  std::vector<CUmemGenericAllocationHandle> handles;
  for (size_t piece = 0; piece < 4; ++piece) {
    handles.push_back(create(kGranule));
    OK(CU(cuMemMap)(range + piece * kGranule, kGranule, 0, handles.back(), 0));
    allow(range + piece * kGranule, kGranule);
  }
  OK(CU(cuMemsetD32)(range, 0xabcd, 4 * kGranule / 4));  // across pieces
  CHECK(word_at(range + kGranule - 4) == 0xabcd);
  CHECK(word_at(range + 4 * kGranule - 4) == 0xabcd);
  std::vector<unsigned> words(kGranule / 2, 0x77);
  OK(CU(cuMemcpyHtoD)(range + kGranule, words.data(), 2 * kGranule));
  CHECK(word_at(range + kGranule - 4) == 0xabcd);
  CHECK(word_at(range + kGranule) == 0x77);
  CHECK(word_at(range + 3 * kGranule - 4) == 0x77);
  CHECK(word_at(range + 3 * kGranule) == 0xabcd);
  CHECK(CU(cuMemsetD8)(range + 3 * kGranule, 0, kGranule + 1) == CUDA_ERROR_INVALID_VALUE);  // past what is mapped

  // A piece goes, another comes in its place, while the others stay.
  OK(CU(cuMemUnmap)(range + kGranule, kGranule));
  CHECK(CU(cuMemsetD8)(range + kGranule, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemRelease)(handles[1]));
  handles[1] = create(kGranule);
  OK(CU(cuMemMap)(range + kGranule, kGranule, 0, handles[1], 0));
  allow(range + kGranule, kGranule);
  OK(CU(cuMemsetD32)(range + kGranule, 5, kGranule / 4));
  CHECK(word_at(range + 2 * kGranule - 4) == 5);
  CHECK(word_at(range + 2 * kGranule) == 0x77);

  OK(CU(cuMemUnmap)(range, 4 * kGranule));
  for (const auto handle : handles) OK(CU(cuMemRelease)(handle));
  OK(CU(cuMemAddressFree)(range, 64 * kGranule));
}

TEST_CASE("memory keeps its content wherever it is mapped, and while its handle is gone", "[forwarded]") {
  const DeviceContext context;
  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, 16 * kGranule, 0, 0, 0));
  CUmemGenericAllocationHandle handle = create(2 * kGranule);
  OK(CU(cuMemMap)(range, 2 * kGranule, 0, handle, 0));
  allow(range, 2 * kGranule);
  OK(CU(cuMemsetD32)(range, 0x1234, 2 * kGranule / 4));
  OK(CU(cuMemMap)(range + 8 * kGranule, 2 * kGranule, 0, handle, 0));  // twice
  allow(range + 8 * kGranule, 2 * kGranule);
  CHECK(word_at(range + 8 * kGranule) == 0x1234);
  OK(CU(cuMemRelease)(handle));
  OK(CU(cuMemUnmap)(range, 2 * kGranule));
  OK(CU(cuMemsetD32)(range + 9 * kGranule, 0x4321, 1));

  OK(CU(cuCtxSynchronize)());  // the fill of device memory does not wait, and what it fills goes away

  CUmemGenericAllocationHandle again = 0;
  OK(CU(cuMemRetainAllocationHandle)(&again, reinterpret_cast<void*>(range + 8 * kGranule)));
  OK(CU(cuMemUnmap)(range + 8 * kGranule, 2 * kGranule));
  OK(CU(cuMemMap)(range + 4 * kGranule, 2 * kGranule, 0, again, 0));
  allow(range + 4 * kGranule, 2 * kGranule);
  CHECK(word_at(range + 4 * kGranule) == 0x1234);
  CHECK(word_at(range + 5 * kGranule) == 0x4321);
  OK(CU(cuMemUnmap)(range + 4 * kGranule, 2 * kGranule));
  OK(CU(cuMemRelease)(again));
  OK(CU(cuMemAddressFree)(range, 16 * kGranule));
}

TEST_CASE("mapped memory is used by nobody without access", "[forwarded]") {
  const DeviceContext context;
  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, 16 * kGranule, 0, 0, 0));
  const CUmemGenericAllocationHandle handle = create(kGranule);
  OK(CU(cuMemMap)(range, kGranule, 0, handle, 0));
  CHECK(CU(cuMemsetD8)(range, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  unsigned long long flags = 99;
  OK(CU(cuMemGetAccess)(&flags, &here, range));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  allow(range, kGranule);
  OK(CU(cuMemGetAccess)(&flags, &here, range));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(CU(cuMemsetD8)(range, 1, kGranule));
  OK(CU(cuCtxSynchronize)());  // a fill under way would fault without access
  const CUmemAccessDesc none = access_of(CU_MEM_ACCESS_FLAGS_PROT_NONE);
  OK(CU(cuMemSetAccess)(range, kGranule, &none, 1));
  CHECK(CU(cuMemsetD8)(range, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  allow(range, kGranule);
  CHECK(word_at(range) == 0x01010101);
  CHECK(CU(cuMemSetAccess)(range, 2 * kGranule, &none, 1) == CUDA_ERROR_INVALID_VALUE);  // half of it is not mapped
  CHECK(CU(cuMemSetAccess)(range, kGranule, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemSetAccess)(range, kGranule, &none, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemUnmap)(range, kGranule));
  OK(CU(cuMemRelease)(handle));
  OK(CU(cuMemAddressFree)(range, 16 * kGranule));
}

TEST_CASE("virtual memory management refuses what is wrong", "[forwarded]") {
  const DeviceContext context;
  CUdeviceptr range = 0;
  CHECK(CU(cuMemAddressReserve)(nullptr, 16 * kGranule, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAddressReserve)(&range, 0, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAddressReserve)(&range, kGranule + 1, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAddressReserve)(&range, kGranule, 3, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemAddressReserve)(&range, 16 * kGranule, 0, 0, 0));

  CUmemAllocationProp prop = memory_on_device();
  CUmemGenericAllocationHandle handle = 0;
  CHECK(CU(cuMemCreate)(nullptr, kGranule, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemCreate)(&handle, kGranule, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemCreate)(&handle, kGranule - 1, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemCreate)(&handle, 0, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemCreate)(&handle, kGranule, &prop, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemCreate)(&handle, size_t{1} << 50, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  prop.location.id = 99;
  CHECK(CU(cuMemCreate)(&handle, kGranule, &prop, 0) == CUDA_ERROR_INVALID_DEVICE);

  handle = create(2 * kGranule);
  CHECK(CU(cuMemMap)(range, kGranule, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);       // a part of it
  CHECK(CU(cuMemMap)(0x1000, 2 * kGranule, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);  // no range
  if (driver_kind() != DriverKind::real) {                                              // whose ranges go on behind their ends
    CHECK(CU(cuMemMap)(range + 15 * kGranule, 2 * kGranule, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  }
  OK(CU(cuMemMap)(range, 2 * kGranule, 0, handle, 0));
  CHECK(CU(cuMemMap)(range + kGranule, 2 * kGranule, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);  // occupied
  CHECK(CU(cuMemAddressFree)(range, 16 * kGranule) != CUDA_SUCCESS);                              // in use
  CHECK(CU(cuMemUnmap)(range, kGranule) == CUDA_ERROR_INVALID_VALUE);                             // a part of it
  CHECK(CU(cuMemFree)(range) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemUnmap)(range, 2 * kGranule));
  // The real driver unmaps what is not mapped.
  CHECK(CU(cuMemUnmap)(range, 2 * kGranule) == (driver_kind() == DriverKind::real ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
  OK(CU(cuMemRelease)(handle));
  CHECK(CU(cuMemRelease)(handle) == CUDA_ERROR_INVALID_VALUE);
  if (refuses_dead_handles()) CHECK(CU(cuMemMap)(range, 2 * kGranule, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAddressFree)(range, kGranule) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemAddressFree)(range, 16 * kGranule));
  CHECK(CU(cuMemAddressFree)(range, 16 * kGranule) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("work under way keeps what is unmapped behind it", "[forwarded]") {
  const DeviceContext context;
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, 64 * kGranule, 0, 0, 0));
  for (unsigned round = 0; round < 10; ++round) {
    const CUmemGenericAllocationHandle handle = create(8 * kGranule);
    OK(CU(cuMemMap)(range, 8 * kGranule, 0, handle, 0));
    allow(range, 8 * kGranule);
    for (int fill = 0; fill < 4; ++fill) OK(CU(cuMemsetD32Async)(range, round, 8 * kGranule / 4, stream));
    if (driver_kind() != DriverKind::forwarded) OK(CU(cuStreamSynchronize)(stream));  // which the manual asks for
    OK(CU(cuMemUnmap)(range, 8 * kGranule));
    OK(CU(cuMemRelease)(handle));
  }
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuMemAddressFree)(range, 64 * kGranule));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("many large ranges fit beside each other", "[forwarded]") {
  const DeviceContext context;
  size_t total = 0;
  OK(CU(cuDeviceTotalMem)(&total, 0));
  const size_t bytes = (total + total / 8) / kGranule * kGranule + kGranule;  // as much as PyTorch reserves for each of its segments
  std::vector<CUdeviceptr> ranges(3);
  for (CUdeviceptr& range : ranges) OK(CU(cuMemAddressReserve)(&range, bytes, 0, 0, 0));
  const CUmemGenericAllocationHandle handle = create(kGranule);
  for (const CUdeviceptr range : ranges) {
    const CUdeviceptr last = range + bytes - kGranule;
    OK(CU(cuMemMap)(last, kGranule, 0, handle, 0));
    allow(last, kGranule);
    OK(CU(cuMemsetD32)(last, 9, kGranule / 4));
    CHECK(word_at(last + kGranule - 4) == 9);
    OK(CU(cuMemUnmap)(last, kGranule));
  }
  OK(CU(cuMemRelease)(handle));
  for (const CUdeviceptr range : ranges) OK(CU(cuMemAddressFree)(range, bytes));
}

TEST_CASE("a handle's memory is described as it was asked for", "[forwarded]") {
  const DeviceContext context;
  const CUmemGenericAllocationHandle handle = create(kGranule);
  CUmemAllocationProp found{};
  OK(CU(cuMemGetAllocationPropertiesFromHandle)(&found, handle));
  CHECK(found.type == CU_MEM_ALLOCATION_TYPE_PINNED);
  CHECK(found.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  CHECK(found.location.id == 0);
  CHECK(CU(cuMemGetAllocationPropertiesFromHandle)(nullptr, handle) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemRelease)(handle));
}
