// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "descriptor_message.hpp"
#include "driver_under_test.hpp"

using namespace mpsshim::test;

namespace {

constexpr CUdeviceptr kLeaseAddress = 0x300000000000;
// A GPU's driver gives a wanted address to reservations of 32 MiB and more, at multiples of 32 MiB; smaller ones lie where it likes.
constexpr size_t kReservation = size_t{32} << 20;

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
  MPSSHIM_SKIP_UNDER_TSAN();
  const DeviceContext context;
  const auto prop = exportable();
  const auto access = read_write();
  size_t granularity = 0;
  OK(CU(cuMemGetAllocationGranularity)(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  REQUIRE(granularity == kGranule);

  CUdeviceptr address = 0;
  OK(CU(cuMemAddressReserve)(&address, kReservation, 0, kLeaseAddress, 0));
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

  CHECK(CU(cuMemMap)(address + 4 * kGranule, kGranule, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);      // a part of it
  CHECK(CU(cuMemMap)(address + 2 * kGranule, 2 * kGranule, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);  // occupied
  CHECK(CU(cuMemAddressFree)(address, kReservation) != CUDA_SUCCESS);                                   // in use
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
  OK(CU(cuMemAddressFree)(address, kReservation));
}

TEST_CASE("a taken address is not given twice") {
  MPSSHIM_SKIP_UNDER_TSAN();
  const DeviceContext context;
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  OK(CU(cuMemAddressReserve)(&first, kReservation, 0, kLeaseAddress, 0));
  OK(CU(cuMemAddressReserve)(&second, kReservation, 0, kLeaseAddress, 0));
  CHECK(first == kLeaseAddress);
  CHECK(second != first);
  CHECK(second % kGranule == 0);
  OK(CU(cuMemAddressFree)(first, kReservation));
  OK(CU(cuMemAddressFree)(second, kReservation));
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
  send_descriptor(std::atoi(std::getenv("MPSSHIM_TEST_SOCKET")), fd);
  pause();
}

// Content must outlive the process that made it: recovery depends on it.
TEST_CASE("exported memory outlives the process that made it") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  setenv("MPSSHIM_TEST_SOCKET", std::to_string(ends[1]).c_str(), 1);
  const pid_t child = start_case("child: makes memory and waits for its end");
  close(ends[1]);
  const int fd = receive_descriptor(ends[0]);
  close(ends[0]);
  REQUIRE(fd >= 0);
  kill(child, SIGKILL);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);

  const DeviceContext context;
  CUmemGenericAllocationHandle handle = 0;
  OK(CU(cuMemImportFromShareableHandle)(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
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
  CHECK(CU(cuMemImportFromShareableHandle)(&handle, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_ERROR_INVALID_VALUE);
  close(fd);
}

TEST_CASE("allocation, its limit, and giving it back", "[forwarded]") {
  const DeviceContext context;
  size_t free_before = 0;
  size_t total = 0;
  OK(CU(cuMemGetInfo)(&free_before, &total));
  CUdeviceptr address = 0;
  OK(CU(cuMemAlloc)(&address, size_t{1} << 20));
  size_t free_now = 0;
  OK(CU(cuMemGetInfo)(&free_now, nullptr));
  if (is_cpu_device()) CHECK(free_now <= free_before - (size_t{1} << 20));
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

TEST_CASE("a thread without a context may ask what a pointer is", "[forwarded]") {
  const DeviceContext context;
  CUdeviceptr address = 0;
  OK(CU(cuMemAlloc)(&address, 4096));
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 4096, 0));
  std::thread([&] {
    CUcontext current = nullptr;
    OK(CU(cuCtxGetCurrent)(&current));
    CHECK(current == nullptr);
    unsigned type = 0, pinned_type = 0;
    CHECK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 8) == CUDA_SUCCESS);
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    CUcontext owner = nullptr;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT};
    void* answers[] = {&pinned_type, &owner};
    CHECK(CU(cuPointerGetAttributes)(2, which, answers, reinterpret_cast<CUdeviceptr>(pinned)) == CUDA_SUCCESS);
    CHECK(pinned_type == CU_MEMORYTYPE_HOST);
    CHECK(owner == context.handle());
  }).join();
  OK(CU(cuMemFreeHost)(pinned));
  OK(CU(cuMemFree)(address));
}

TEST_CASE("pinned host memory has its own address on the device", "[forwarded]") {
  const DeviceContext context;
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE));
  CUdeviceptr on_device = 0;
  OK(CU(cuMemHostGetDevicePointer)(&on_device, pinned, 0));
  CHECK(on_device == reinterpret_cast<CUdeviceptr>(pinned));
  unsigned type = 0;
  OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, on_device));
  CHECK(type == CU_MEMORYTYPE_HOST);
  unsigned flags = 0;
  OK(CU(cuMemHostGetFlags)(&flags, pinned));
  CHECK((flags & CU_MEMHOSTALLOC_PORTABLE) != 0);
  OK(CU(cuMemsetD32)(on_device, 0x01020304, 1024));
  CHECK(static_cast<unsigned*>(pinned)[1023] == 0x01020304);
  OK(CU(cuMemFreeHost)(pinned));
  CHECK(CU(cuMemHostAlloc)(nullptr, 4096, 0) == CUDA_ERROR_INVALID_VALUE);
  int plain = 0;
  CHECK(CU(cuMemHostGetDevicePointer)(&on_device, &plain, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemFreeHost)(&plain) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("registered host memory has its own address on the device") {
  const DeviceContext context;
  CUdeviceptr on_device = 0;
  std::vector<std::byte> pageable(64 * 1024);
  OK(CU(cuMemHostRegister)(pageable.data(), pageable.size(), CU_MEMHOSTREGISTER_DEVICEMAP));
  CHECK(CU(cuMemHostRegister)(pageable.data() + 4096, 4096, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  OK(CU(cuMemHostGetDevicePointer)(&on_device, pageable.data() + 128, 0));
  CHECK(on_device == reinterpret_cast<CUdeviceptr>(pageable.data() + 128));
  OK(CU(cuMemHostUnregister)(pageable.data()));
  CHECK(CU(cuMemHostUnregister)(pageable.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  if (is_cpu_driver()) CHECK(CU(cuMemHostRegister)(reinterpret_cast<void*>(0x1000), 4096, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("copies and fills in one dimension", "[forwarded]") {
  const DeviceContext context;
  constexpr size_t kCount = 3 << 20;  // more than one staging piece
  std::vector<unsigned> there(kCount);
  std::vector<unsigned> back(kCount);
  for (size_t i = 0; i < kCount; ++i) there[i] = static_cast<unsigned>(i * 2654435761u);
  const size_t bytes = kCount * sizeof(unsigned);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  OK(CU(cuMemAlloc)(&first, bytes));
  OK(CU(cuMemAlloc)(&second, bytes));
  OK(CU(cuMemcpyHtoD)(first, there.data(), bytes));
  OK(CU(cuMemcpyDtoD)(second, first, bytes));
  OK(CU(cuMemcpyDtoH)(back.data(), second, bytes));
  CHECK(back == there);
  // Directions inferred from the pointers, odd sizes and places.
  OK(CU(cuMemsetD8)(first, 0x11, bytes));
  OK(CU(cuMemcpy)(first + 3, reinterpret_cast<CUdeviceptr>(there.data()) + 1, 1001));
  OK(CU(cuMemcpy)(reinterpret_cast<CUdeviceptr>(back.data()), first, 2000));
  const auto* const from = reinterpret_cast<const unsigned char*>(there.data());
  const auto* const to = reinterpret_cast<const unsigned char*>(back.data());
  CHECK(std::memcmp(to + 3, from + 1, 1001) == 0);
  CHECK(to[2] == 0x11);
  CHECK(to[3 + 1001] == 0x11);
  // Fills of each width, the last element and the one behind it.
  OK(CU(cuMemsetD8)(first, 0, bytes));
  OK(CU(cuMemsetD16)(first, 0xabcd, 5));
  OK(CU(cuMemsetD32Async)(first + 16, 0x12345678, 2, nullptr));
  OK(CU(cuMemcpyDtoH)(back.data(), first, 32));
  CHECK(back[2] == 0xabcdu);
  CHECK(back[4] == 0x12345678u);
  CHECK(back[5] == 0x12345678u);
  CHECK(back[6] == 0);
  OK(CU(cuMemFree)(first));
  OK(CU(cuMemFree)(second));
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

TEST_CASE("synchronous operations on memory that asks for it are done when they return", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver's pointer attributes are read-only: this one is kept in the client");
  CUdeviceptr memory = 0, other = 0;
  OK(CU(cuMemAlloc)(&memory, 4096));
  OK(CU(cuMemAlloc)(&other, 4096));
  unsigned on = 1, off = 0;
  const auto is_synchronous = [](CUdeviceptr address) {
    unsigned value = 0;
    OK(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
    return (value & 0xff) != 0;
  };
  CHECK(!is_synchronous(memory));
  OK(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
  CHECK(is_synchronous(memory + 100));
  CHECK(!is_synchronous(other));
  OK(CU(cuMemsetD32)(memory, 5, 1024));
  OK(CU(cuStreamQuery)(nullptr));
  OK(CU(cuMemcpyDtoD)(other, memory, 4096));
  OK(CU(cuStreamQuery)(nullptr));
  OK(CU(cuPointerSetAttribute)(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
  CHECK(!is_synchronous(memory));
  CHECK(CU(cuPointerSetAttribute)(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 0x1234) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(other));
  OK(CU(cuMemFree)(memory));
}
