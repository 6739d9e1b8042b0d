// SPDX-License-Identifier: Apache-2.0
// Registered host memory.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "driver_under_test.hpp"

using namespace mpsshim::test;

namespace {

constexpr size_t kBytes = size_t{1} << 20;

struct Pages {
  unsigned* words = nullptr;
  Pages() {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    words = static_cast<unsigned*>(memory);
    for (unsigned i = 0; i < kBytes / 4; ++i) words[i] = i;
  }
  ~Pages() { munmap(words, kBytes); }
  Pages(const Pages&) = delete;
};

}  // namespace

TEST_CASE("registered memory keeps what it held and is reached by the device", "[forwarded]") {
  const DeviceContext context;
  const Pages pages;
  OK(CU(cuMemHostRegister)(pages.words, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  CHECK(pages.words[1234] == 1234);
  pages.words[1] = 77;
  CUdeviceptr mapped = 0;
  OK(CU(cuMemHostGetDevicePointer)(&mapped, pages.words, 0));
  OK(CU(cuMemsetD32)(mapped + kBytes / 2, 5, 100));  // the device writes where the host reads
  OK(CU(cuCtxSynchronize)());
  CHECK(pages.words[kBytes / 8] == 5);
  CHECK(pages.words[kBytes / 8 + 99] == 5);
  CHECK(pages.words[kBytes / 8 + 100] == kBytes / 8 + 100);

  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, kBytes));
  OK(CU(cuMemcpyHtoDAsync)(device, pages.words, kBytes, stream));
  OK(CU(cuMemsetD32Async)(device, 9, 1, stream));
  OK(CU(cuMemcpyDtoHAsync)(pages.words + 10, device, 8, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(pages.words[10] == 9);
  CHECK(pages.words[11] == 77);
  OK(CU(cuMemHostUnregister)(pages.words));
  CHECK(pages.words[10] == 9);
  CHECK(pages.words[kBytes / 8] == 5);
  CHECK(pages.words[kBytes / 4 - 1] == kBytes / 4 - 1);
  pages.words[5] = 4711;
  OK(CU(cuMemcpyHtoD)(device, pages.words, kBytes));  // pageable again
  unsigned word = 0;
  OK(CU(cuMemcpyDtoH)(&word, device + 20, 4));
  CHECK(word == 4711);
  OK(CU(cuMemHostRegister)(pages.words, kBytes, 0));  // once more
  CHECK(pages.words[5] == 4711);
  OK(CU(cuMemHostUnregister)(pages.words));
  CHECK(pages.words[5] == 4711);
  OK(CU(cuMemFree)(device));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("registration refuses what is wrong", "[forwarded]") {
  const DeviceContext context;
  const Pages pages;
  CHECK(CU(cuMemHostRegister)(nullptr, kBytes, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemHostRegister)(pages.words, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemHostRegister)(pages.words, kBytes, 0x100) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemHostRegister)(pages.words, kBytes, 0));
  CHECK(CU(cuMemHostRegister)(pages.words, kBytes, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK(CU(cuMemHostUnregister)(pages.words + 1024) != CUDA_SUCCESS);
  OK(CU(cuMemHostUnregister)(pages.words));
  CHECK(CU(cuMemHostUnregister)(pages.words) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  void* gone = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(gone, kBytes);
  CHECK(CU(cuMemHostRegister)(gone, kBytes, 0) != CUDA_SUCCESS);
}

TEST_CASE("registered pointers say what they are", "[forwarded]") {
  const DeviceContext context;
  const Pages pages;
  const auto address = reinterpret_cast<CUdeviceptr>(pages.words);
  unsigned type = 0;
  CHECK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemHostRegister)(pages.words, kBytes, CU_MEMHOSTREGISTER_PORTABLE));
  OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 4));
  CHECK(type == CU_MEMORYTYPE_HOST);
  void* host = nullptr;
  OK(CU(cuPointerGetAttribute)(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 4));
  CHECK(host == pages.words + 1);
  CUdeviceptr device = 0, mapped = 0;
  OK(CU(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 4));
  OK(CU(cuMemHostGetDevicePointer)(&mapped, pages.words + 1, 0));
  CHECK(device == mapped);
  unsigned flags = 0;
  OK(CU(cuMemHostGetFlags)(&flags, pages.words));
  CHECK((flags & CU_MEMHOSTALLOC_PORTABLE) != 0);
  OK(CU(cuMemHostUnregister)(pages.words));
}

TEST_CASE("odd ranges and busy processes register memory as well", "[forwarded]") {
  const DeviceContext context;
  const Pages pages;
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, kBytes));
  const auto round_trip = [&](unsigned* from, size_t bytes) {
    OK(CU(cuMemHostRegister)(from, bytes, 0));
    OK(CU(cuMemcpyHtoDAsync)(device, from, bytes, nullptr));
    OK(CU(cuStreamSynchronize)(nullptr));
    std::vector<unsigned> expected(from, from + bytes / 4);
    std::memset(from, 0, bytes);
    OK(CU(cuMemcpyDtoHAsync)(from, device, bytes, nullptr));
    OK(CU(cuStreamSynchronize)(nullptr));
    const bool is_equal = std::memcmp(expected.data(), from, bytes) == 0;
    CHECK(is_equal);
    OK(CU(cuMemHostUnregister)(from));
  };
  round_trip(pages.words + 3, 100000);  // no whole pages
  // Another thread stores into the memory all the time: none of that may be lost.
  std::atomic<bool> over{false};
  auto* counter = reinterpret_cast<std::atomic<unsigned>*>(pages.words + kBytes / 8 + 1);
  counter->store(0);
  unsigned stored = 0;
  std::thread writer([&] {
    while (!over) counter->store(++stored);
  });
  for (int round = 0; round < 20; ++round) round_trip(pages.words, kBytes / 4);
  for (int round = 0; round < 20; ++round) {
    OK(CU(cuMemHostRegister)(pages.words, kBytes, 0));
    OK(CU(cuMemHostUnregister)(pages.words));
  }
  over = true;
  writer.join();
  CHECK(counter->load() == stored);
  OK(CU(cuMemFree)(device));
}

TEST_CASE("a child's registered memory is its own", "[forwarded]") {
  const bool has_descriptors = GENERATE(true, false);
  const DeviceContext context;
  const Pages pages;
  OK(CU(cuMemHostRegister)(pages.words, kBytes, 0));
  int ready[2], done[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(done) == 0);
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit none{has_descriptors ? limit.rlim_cur : 0, limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const pid_t child = fork();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (child == 0) {
    char byte = 0;
    if (read(ready[0], &byte, 1) != 1) _exit(2);
    const bool is_as_it_was = pages.words[100] == 100 && pages.words[2000] == 2000;  // the parent has written since
    pages.words[100] = 1;
    if (write(done[1], &byte, 1) != 1) _exit(2);
    _exit(is_as_it_was ? 0 : 1);
  }
  pages.words[2000] = 3;
  char byte = 0;
  REQUIRE(write(ready[1], &byte, 1) == 1);
  REQUIRE(read(done[0], &byte, 1) == 1);
  CHECK(pages.words[100] == 100);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  OK(CU(cuMemHostUnregister)(pages.words));
  CHECK(pages.words[2000] == 3);
}

TEST_CASE("memory that was registered is as any other afterwards", "[forwarded]") {
  const bool are_others_there = GENERATE(false, true);
  INFO((are_others_there ? "beside a thread that stores" : "alone"));
  const DeviceContext context;
  const Pages pages;
  OK(CU(cuMemHostRegister)(pages.words, kBytes, 0));
  std::atomic<bool> over{false};
  auto* counter = reinterpret_cast<std::atomic<unsigned>*>(pages.words + 1);
  counter->store(0);
  unsigned stored = 0;
  std::thread writer;
  if (are_others_there) {
    writer = std::thread([&] {
      while (!over) counter->store(++stored);
    });
    while (counter->load() == 0) std::this_thread::yield();  // it is at it
  }
  pages.words[2000] = 3;
  OK(CU(cuMemHostUnregister)(pages.words));
  over = true;
  if (writer.joinable()) writer.join();
  if (are_others_there) CHECK(counter->load() == stored);
  CHECK(pages.words[2000] == 3);
  CHECK(pages.words[kBytes / 4 - 1] == kBytes / 4 - 1);

  // Given up, it comes back blank; whoever is born now has memory of its own.
  REQUIRE(madvise(pages.words + kBytes / 8, kBytes / 4, MADV_DONTNEED) == 0);
  CHECK(pages.words[kBytes / 8] == 0);
  CHECK(pages.words[kBytes / 8 + kBytes / 16 - 1] == 0);
  CHECK(pages.words[kBytes / 8 - 1] == kBytes / 8 - 1);
  CHECK(pages.words[kBytes / 8 + kBytes / 16] == kBytes / 8 + kBytes / 16);
  const pid_t child = fork();
  if (child == 0) {
    const bool is_as_it_was = pages.words[2000] == 3 && pages.words[3000] == 3000 && pages.words[kBytes / 8] == 0;
    pages.words[2000] = 4;
    _exit(is_as_it_was ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(pages.words[2000] == 3);
}

TEST_CASE("memory that was registered can grow afterwards", "[forwarded]") {
  const DeviceContext context;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  static_cast<unsigned*>(memory)[100] = 100;
  OK(CU(cuMemHostRegister)(memory, kBytes, 0));
  OK(CU(cuMemHostUnregister)(memory));
  memory = mremap(memory, kBytes, 2 * kBytes, MREMAP_MAYMOVE);
  REQUIRE(memory != MAP_FAILED);
  auto* words = static_cast<unsigned*>(memory);
  CHECK(words[100] == 100);
  CHECK(words[kBytes / 4 + 100] == 0);
  words[kBytes / 2 - 1] = 5;
  CHECK(words[kBytes / 2 - 1] == 5);
  munmap(memory, 2 * kBytes);
}

TEST_CASE("what lies where registered memory has been is not touched", "[forwarded]") {
  const DeviceContext context;
  unsigned* words = nullptr;
  {
    const Pages pages;
    words = pages.words;
    OK(CU(cuMemHostRegister)(words, kBytes, 0));
  }  // unmapped: a program that forgets the other call
  void* memory = mmap(words, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  REQUIRE(memory == words);
  words[100] = 4711;
  const pid_t child = fork();
  if (child == 0) _exit(words[100] == 4711 && words[200] == 0 ? 0 : 1);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  OK(CU(cuMemHostUnregister)(words));
  CHECK(words[100] == 4711);
  CHECK(words[200] == 0);
  munmap(memory, kBytes);
}

TEST_CASE("registered memory that is moved is kept where it is then", "[forwarded]") {
  const DeviceContext context;
  const Pages pages;
  const Pages elsewhere;
  OK(CU(cuMemHostRegister)(pages.words, kBytes, 0));
  pages.words[100] = 4711;
  REQUIRE(mremap(pages.words, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere.words) == elsewhere.words);
  elsewhere.words[101] = 4712;
  OK(CU(cuMemHostUnregister)(pages.words));
  CHECK(elsewhere.words[100] == 4711);
  CHECK(elsewhere.words[101] == 4712);
  CHECK(elsewhere.words[200] == 200);
  REQUIRE(madvise(elsewhere.words, kBytes / 2, MADV_DONTNEED) == 0);
  CHECK(elsewhere.words[100] == 0);
  CHECK(elsewhere.words[kBytes / 4 - 1] == kBytes / 4 - 1);
}

TEST_CASE("registered memory may grow, and is kept as far as it was registered", "[forwarded]") {
  const DeviceContext context;
  void* const before = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(before != MAP_FAILED);
  static_cast<unsigned*>(before)[100] = 100;
  OK(CU(cuMemHostRegister)(before, kBytes, 0));
  void* const now = mremap(before, kBytes, 4 * kBytes, MREMAP_MAYMOVE);
  REQUIRE(now != MAP_FAILED);
  auto* words = static_cast<unsigned*>(now);
  words[kBytes / 4 - 1] = 5;
  const pid_t child = fork();
  if (child == 0) _exit(words[100] == 100 && words[kBytes / 4 - 1] == 5 && words[kBytes / 4] == 0 && words[kBytes - 1] == 0 ? 0 : 1);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  OK(CU(cuMemHostUnregister)(before));
  CHECK(words[100] == 100);
  CHECK(words[kBytes / 4 - 1] == 5);
  CHECK(words[kBytes / 4] == 0);
  words[kBytes - 1] = 6;
  CHECK(words[kBytes - 1] == 6);
  munmap(now, 4 * kBytes);
}
