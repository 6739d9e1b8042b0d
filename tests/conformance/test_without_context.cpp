// SPDX-License-Identifier: Apache-2.0
// What works in no context: virtual memory and pools belong to the process and to the device that their properties name. Only cuInit has been
// called; a context comes later, and goes before the memory does.
#include <unistd.h>

#include "driver_under_test.hpp"

using namespace mpsshim::test;

namespace {

CUmemAllocationProp exportable_memory() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

void require_no_context() {
  OK(CU(cuInit)(0));
  CUcontext current = nullptr;
  OK(CU(cuCtxGetCurrent)(&current));
  REQUIRE(current == nullptr);
}

// A handle of the same memory, by way of a descriptor.
CUmemGenericAllocationHandle passed_around(CUmemGenericAllocationHandle handle) {
  int fd = -1;
  OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported = 0;
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(fd));  // NOLINT(performance-no-int-to-ptr)
  OK(CU(cuMemImportFromShareableHandle)(&imported, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  return imported;
}

void use_in_a_context(CUdeviceptr memory) {
  const DeviceContext context;
  OK(CU(cuMemsetD32)(memory, 0x1357, kGranule / 4));
  CHECK(word_at(memory + kGranule - 4) == 0x1357);
}

}  // namespace

TEST_CASE("virtual memory needs no context", "[forwarded]") {
  require_no_context();
  const CUmemAllocationProp properties = exportable_memory();
  size_t granularity = 0;
  OK(CU(cuMemGetAllocationGranularity)(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK(kGranule % granularity == 0);
  CUmemGenericAllocationHandle made = 0;
  OK(CU(cuMemCreate)(&made, kGranule, &properties, 0));
  const CUmemGenericAllocationHandle imported = passed_around(made);
  OK(CU(cuMemRelease)(made));
  CUmemAllocationProp told{};
  OK(CU(cuMemGetAllocationPropertiesFromHandle)(&told, imported));
  CHECK(told.type == CU_MEM_ALLOCATION_TYPE_PINNED);
  CHECK(told.location.id == 0);

  CUdeviceptr range = 0;
  OK(CU(cuMemAddressReserve)(&range, 2 * kGranule, 0, 0, 0));
  OK(CU(cuMemMap)(range, kGranule, 0, imported, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(CU(cuMemSetAccess)(range, kGranule, &access, 1));
  unsigned long long flags = 0;
  OK(CU(cuMemGetAccess)(&flags, &access.location, range));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemGenericAllocationHandle retained = 0;
  OK(CU(cuMemRetainAllocationHandle)(&retained, reinterpret_cast<void*>(range)));  // NOLINT(performance-no-int-to-ptr)
  OK(CU(cuMemRelease)(retained));
  OK(CU(cuMemRelease)(imported));

  use_in_a_context(range);  // which takes nothing of it along
  OK(CU(cuMemUnmap)(range, kGranule));
  OK(CU(cuMemAddressFree)(range, 2 * kGranule));
}

TEST_CASE("memory pools need no context", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no pools");
  require_no_context();
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  OK(CU(cuMemPoolCreate)(&pool, &properties));
  cuuint64_t threshold = 1 << 20;
  OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  OK(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CHECK(threshold == 1 << 20);
  CUmemAccess_flags flags{};
  OK(CU(cuMemPoolGetAccess)(&flags, pool, &properties.location));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(CU(cuMemPoolTrimTo)(pool, 0));
  int fd = -1;
  OK(CU(cuMemPoolExportToShareableHandle)(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(fd);
  OK(CU(cuMemPoolDestroy)(pool));
}
