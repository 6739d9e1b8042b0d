// SPDX-License-Identifier: Apache-2.0
// Compressible memory (cuMemCreate with allocFlags.compressionType): the driver may give it, and says whether it did, to whoever has the memory.
#include "other_process.hpp"

using namespace mpsshim::test;

namespace {

CUmemAllocationProp memory_of(CUmemAllocationCompType compression) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.allocFlags.compressionType = static_cast<unsigned char>(compression);
  return properties;
}

int compression_of(CUmemGenericAllocationHandle handle) {
  CUmemAllocationProp properties{};
  OK(CU(cuMemGetAllocationPropertiesFromHandle)(&properties, handle));
  return properties.allocFlags.compressionType;
}

CUdeviceptr mapped(CUmemGenericAllocationHandle handle) {
  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, kGranule, 0, 0, 0));
  OK(CU(cuMemMap)(range, kGranule, 0, handle, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(CU(cuMemSetAccess)(range, kGranule, &access, 1));
  return range;
}

void unmap(CUdeviceptr range) {
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuMemUnmap)(range, kGranule));
  OK(CU(cuMemAddressFree)(range, kGranule));
}

bool has_compressible_memory() {
  int is_supported = 0;
  OK(CU(cuDeviceGetAttribute)(&is_supported, CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 0));
  return is_supported != 0;
}

}  // namespace

// Hidden: the other side.
TEST_CASE("imports compressible memory", "[.]") {
  const DeviceContext context;
  const int fd = receive_descriptor(own_socket());
  REQUIRE(fd >= 0);
  CUmemGenericAllocationHandle handle = 0;
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(fd));  // NOLINT(performance-no-int-to-ptr)
  OK(CU(cuMemImportFromShareableHandle)(&handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  CHECK(compression_of(handle) == CU_MEM_ALLOCATION_COMP_GENERIC);
  const CUdeviceptr range = mapped(handle);
  CHECK(word_at(range + kGranule - 4) == 0x2468);
  OK(CU(cuMemsetD32)(range, 0x8642, kGranule / 4));
  unmap(range);
  OK(CU(cuMemRelease)(handle));
}

TEST_CASE("memory says whether it is compressible, to whoever has it", "[forwarded]") {
  const DeviceContext context;
  if (!has_compressible_memory()) MPSSHIM_SKIP("the device has no compressible memory");
  CUmemGenericAllocationHandle plain = 0;
  CUmemAllocationProp properties = memory_of(CU_MEM_ALLOCATION_COMP_NONE);
  OK(CU(cuMemCreate)(&plain, kGranule, &properties, 0));
  CHECK(compression_of(plain) == CU_MEM_ALLOCATION_COMP_NONE);
  OK(CU(cuMemRelease)(plain));

  properties = memory_of(CU_MEM_ALLOCATION_COMP_GENERIC);
  size_t granularity = 0;
  OK(CU(cuMemGetAllocationGranularity)(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK(kGranule % granularity == 0);
  CUmemGenericAllocationHandle handle = 0;
  OK(CU(cuMemCreate)(&handle, kGranule, &properties, 0));
  CHECK(compression_of(handle) == CU_MEM_ALLOCATION_COMP_GENERIC);
  const CUdeviceptr range = mapped(handle);
  OK(CU(cuMemsetD32)(range, 0x2468, kGranule / 4));
  OK(CU(cuCtxSynchronize)());

  const Pair pair;
  const pid_t child = start_other("imports compressible memory", pair);
  REQUIRE(child > 0);
  int fd = -1;
  OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send_descriptor(pair.ends[0], fd);
  close(fd);
  CHECK(exit_of(child) == 0);
  CHECK(word_at(range) == 0x8642);
  unmap(range);
  OK(CU(cuMemRelease)(handle));
}

TEST_CASE("memory of a kind that there is not", "[forwarded]") {
  const DeviceContext context;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = memory_of(CU_MEM_ALLOCATION_COMP_NONE);
  properties.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC + 1;
  CHECK(CU(cuMemCreate)(&handle, kGranule, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
  properties = memory_of(CU_MEM_ALLOCATION_COMP_NONE);
  properties.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
  CHECK(CU(cuMemCreate)(&handle, kGranule, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
}
