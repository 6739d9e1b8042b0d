// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "driver_under_test.hpp"

using namespace mpsshim::test;

namespace {

constexpr size_t kGranule = size_t{2} << 20;
constexpr CUdeviceptr kLeaseAddress = 0x300000000000;

CUmemAllocationProp exportable() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return prop;
}

CUmemAccessDesc read_write() {
  CUmemAccessDesc desc{};
  desc.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return desc;
}

}  // namespace

TEST_CASE("memory mapped at a fixed address keeps its content across unmapping") {
  const DeviceContext context;
  const auto prop = exportable();
  const auto access = read_write();
  size_t granularity = 0;
  OK(CU(cuMemGetAllocationGranularity)(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  REQUIRE(granularity == kGranule);

  CUdeviceptr address = 0;
  OK(CU(cuMemAddressReserve)(&address, 8 * kGranule, 0, kLeaseAddress, 0));
  REQUIRE(address == kLeaseAddress);
  CUmemGenericAllocationHandle handle = 0;
  OK(CU(cuMemCreate)(&handle, 2 * kGranule, &prop, 0));
  OK(CU(cuMemMap)(address + kGranule, 2 * kGranule, 0, handle, 0));
  CHECK(CU(cuMemsetD32)(address + kGranule, 1, 4) == CUDA_ERROR_INVALID_VALUE);  // no access yet
  OK(CU(cuMemSetAccess)(address + kGranule, 2 * kGranule, &access, 1));
  OK(CU(cuMemsetD32)(address + kGranule, 0x12345678, 2 * kGranule / 4));
  unsigned word = 0;
  OK(CU(cuMemcpyDtoH)(&word, address + 3 * kGranule - 4, 4));
  CHECK(word == 0x12345678);
  CHECK(CU(cuMemcpyDtoH)(&word, address + 3 * kGranule - 2, 4) != CUDA_SUCCESS);  // one past the end

  CHECK(CU(cuMemMap)(address + 2 * kGranule, kGranule, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);  // occupied
  CHECK(CU(cuMemAddressFree)(address, 8 * kGranule) != CUDA_SUCCESS);                               // in use
  OK(CU(cuMemUnmap)(address + kGranule, 2 * kGranule));
  CHECK(CU(cuMemcpyDtoH)(&word, address + kGranule, 4) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemMap)(address, 2 * kGranule, 0, handle, 0));
  OK(CU(cuMemSetAccess)(address, 2 * kGranule, &access, 1));
  OK(CU(cuMemcpyDtoH)(&word, address + 4096, 4));
  CHECK(word == 0x12345678);

  CUmemGenericAllocationHandle again = 0;
  OK(CU(cuMemRetainAllocationHandle)(&again, reinterpret_cast<void*>(address)));
  CHECK(again == handle);
  OK(CU(cuMemRelease)(again));
  OK(CU(cuMemRelease)(handle));
  OK(CU(cuMemUnmap)(address, 2 * kGranule));
  OK(CU(cuMemAddressFree)(address, 8 * kGranule));
}

TEST_CASE("a taken address is not given twice") {
  const DeviceContext context;
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  OK(CU(cuMemAddressReserve)(&first, kGranule, 0, kLeaseAddress, 0));
  OK(CU(cuMemAddressReserve)(&second, kGranule, 0, kLeaseAddress, 0));
  CHECK(first == kLeaseAddress);
  CHECK(second != first);
  CHECK(second % kGranule == 0);
  OK(CU(cuMemAddressFree)(first, kGranule));
  OK(CU(cuMemAddressFree)(second, kGranule));
  CHECK(CU(cuMemAddressReserve)(&first, 4096, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("child: makes memory and waits for its end", "[.]") {
  const DeviceContext context;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  const auto prop = exportable();
  const auto access = read_write();
  OK(CU(cuMemCreate)(&handle, kGranule, &prop, 0));
  OK(CU(cuMemAddressReserve)(&address, kGranule, 0, 0, 0));
  OK(CU(cuMemMap)(address, kGranule, 0, handle, 0));
  OK(CU(cuMemSetAccess)(address, kGranule, &access, 1));
  OK(CU(cuMemsetD32)(address, 4711, kGranule / 4));
  OK(CU(cuCtxSynchronize)());
  int fd = -1;
  OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  const int answer = std::atoi(std::getenv("MPSSHIM_TEST_PIPE"));
  REQUIRE(write(answer, &fd, sizeof fd) == sizeof fd);
  pause();
}

// Content must outlive the process that made it: recovery depends on it.
TEST_CASE("exported memory outlives the process that made it") {
  int answer[2];
  REQUIRE(pipe(answer) == 0);
  setenv("MPSSHIM_TEST_PIPE", std::to_string(answer[1]).c_str(), 1);
  const pid_t child = start_case("child: makes memory and waits for its end");
  close(answer[1]);
  int fd_there = -1;
  REQUIRE(read(answer[0], &fd_there, sizeof fd_there) == sizeof fd_there);
  close(answer[0]);
  const std::string path = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(fd_there);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(fd >= 0);
  kill(child, SIGKILL);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);

  const DeviceContext context;
  CUmemGenericAllocationHandle handle = 0;
  OK(CU(cuMemImportFromShareableHandle)(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  CUdeviceptr address = 0;
  const auto access = read_write();
  OK(CU(cuMemAddressReserve)(&address, kGranule, 0, 0, 0));
  OK(CU(cuMemMap)(address, kGranule, 0, handle, 0));
  OK(CU(cuMemSetAccess)(address, kGranule, &access, 1));
  unsigned word = 0;
  OK(CU(cuMemcpyDtoH)(&word, address + kGranule - 4, 4));
  CHECK(word == 4711);
  OK(CU(cuMemUnmap)(address, kGranule));
  OK(CU(cuMemRelease)(handle));
}

TEST_CASE("a descriptor that could shrink is not imported") {
  if (!is_cpu_driver()) MPSSHIM_SKIP("about memfds");
  const DeviceContext context;
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(fd, kGranule) == 0);
  CUmemGenericAllocationHandle handle = 0;
  void* const os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  CHECK(CU(cuMemImportFromShareableHandle)(&handle, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
        CUDA_ERROR_INVALID_VALUE);
  close(fd);
}

TEST_CASE("allocation, its limit, and giving it back") {
  const DeviceContext context;
  size_t free_before = 0;
  size_t total = 0;
  OK(CU(cuMemGetInfo)(&free_before, &total));
  CUdeviceptr address = 0;
  OK(CU(cuMemAlloc)(&address, size_t{1} << 20));
  size_t free_now = 0;
  OK(CU(cuMemGetInfo)(&free_now, nullptr));
  CHECK(free_now <= free_before - (size_t{1} << 20));
  CUdeviceptr base = 0;
  size_t size = 0;
  OK(CU(cuMemGetAddressRange)(&base, &size, address + 4096));
  CHECK(base == address);
  CHECK(CU(cuMemFree)(address + 4) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(address));
  CHECK(CU(cuMemFree)(address) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(0));
  CHECK(CU(cuMemAlloc)(&address, total + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(CU(cuMemAlloc)(&address, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("registered and pinned host memory has its own address on the device") {
  const DeviceContext context;
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE));
  CUdeviceptr on_device = 0;
  OK(CU(cuMemHostGetDevicePointer)(&on_device, pinned, 0));
  CHECK(on_device == reinterpret_cast<CUdeviceptr>(pinned));
  unsigned type = 0;
  OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, on_device));
  CHECK(type == CU_MEMORYTYPE_HOST);
  OK(CU(cuMemFreeHost)(pinned));

  std::vector<std::byte> pageable(64 * 1024);
  OK(CU(cuMemHostRegister)(pageable.data(), pageable.size(), CU_MEMHOSTREGISTER_DEVICEMAP));
  CHECK(CU(cuMemHostRegister)(pageable.data() + 4096, 4096, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  OK(CU(cuMemHostGetDevicePointer)(&on_device, pageable.data() + 128, 0));
  CHECK(on_device == reinterpret_cast<CUdeviceptr>(pageable.data() + 128));
  OK(CU(cuMemHostUnregister)(pageable.data()));
  CHECK(CU(cuMemHostUnregister)(pageable.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  if (is_cpu_driver()) CHECK(CU(cuMemHostRegister)(reinterpret_cast<void*>(0x1000), 4096, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("copies and fills in two dimensions") {
  const DeviceContext context;
  CUdeviceptr device = 0;
  size_t pitch = 0;
  OK(CU(cuMemAllocPitch)(&device, &pitch, 40, 10, 4));
  CHECK(pitch >= 40);
  OK(CU(cuMemsetD2D16)(device, pitch, 0xabcd, 20, 10));
  std::vector<unsigned short> host(30 * 10, 7);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = device;
  copy.srcPitch = pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host.data();
  copy.dstPitch = 60;
  copy.dstXInBytes = 10;
  copy.WidthInBytes = 40;
  copy.Height = 10;
  OK(CU(cuMemcpy2D)(&copy));
  for (size_t row = 0; row < 10; ++row) {
    CHECK(host[row * 30 + 4] == 7);
    CHECK(host[row * 30 + 5] == 0xabcd);
    CHECK(host[row * 30 + 24] == 0xabcd);
    CHECK(host[row * 30 + 25] == 7);
  }
  copy.Height = 11;
  copy.srcY = static_cast<size_t>(-1);
  if (is_cpu_driver()) CHECK(CU(cuMemcpy2D)(&copy) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(device));
}
