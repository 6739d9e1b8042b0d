// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <numeric>

#include "tests/process/programs/topics.hpp"

namespace mpsshim::test {

namespace {

constexpr unsigned kLargeWords = 5'000'001;  // 20 MB, more than any staging area, and no round number

std::vector<unsigned> indices(std::size_t count) {
  std::vector<unsigned> words(count);
  std::iota(words.begin(), words.end(), 1000u);
  return words;
}

}  // namespace

void pageable_copies(const Device& device) {
  Words words(kLargeWords, 1);
  for (unsigned turn = 1; turn <= 3; ++turn) {
    CU(device.launch_add(words.address, words.count(), turn));
    words.add(turn);
  }
  words.check();
  // Odd sizes at odd addresses; the source may change as soon as the call has returned.
  for (const std::size_t bytes : {1, 3, 63, 4097, 65537, 1 << 20}) {
    std::vector<unsigned char> source(bytes), found(bytes);
    for (std::size_t i = 0; i < bytes; ++i) source[i] = static_cast<unsigned char>(i * 7 + bytes);
    const std::vector<unsigned char> kept = source;
    CU(cuMemcpyHtoDAsync(words.address + 5, source.data(), bytes, nullptr));
    std::fill(source.begin(), source.end(), static_cast<unsigned char>(0));
    CU(cuMemcpyDtoH(found.data(), words.address + 5, bytes));
    require(found == kept, "a pageable copy of " + std::to_string(bytes) + " bytes came back changed");
  }
  // Device to device, all of it.
  Words other(kLargeWords, 2);
  CU(cuMemcpyHtoD(words.address, other.expected.data(), kLargeWords * sizeof(unsigned)));
  CU(cuMemsetD8(other.address, 0, kLargeWords * sizeof(unsigned)));
  CU(cuMemcpyDtoD(other.address, words.address, kLargeWords * sizeof(unsigned)));
  other.check();
  CU(cuMemcpyHtoD(other.address, nullptr, 0));  // nothing is asked for
}

void pinned_memory(const Device& device) {
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  unsigned* pinned = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), kLargeWords * sizeof(unsigned), 0));
  std::vector<unsigned> expected = indices(kLargeWords);
  std::copy(expected.begin(), expected.end(), pinned);
  CUdeviceptr memory = 0;
  CU(cuMemAlloc(&memory, kLargeWords * sizeof(unsigned)));
  CU(cuMemcpyHtoDAsync(memory, pinned, kLargeWords * sizeof(unsigned), stream));
  CU(device.launch_add(memory, kLargeWords, 5, stream));
  CU(cuMemcpyDtoHAsync(pinned, memory, kLargeWords * sizeof(unsigned), stream));
  CU(cuStreamSynchronize(stream));
  for (unsigned& word : expected) word += 5;
  check_words("pinned memory after copies", pinned, expected);
  // A kernel works on it where it lies, host and device taking turns.
  CUdeviceptr mapped = 0;
  CU(cuMemHostGetDevicePointer(&mapped, pinned, 0));
  for (unsigned turn = 1; turn <= 3; ++turn) {
    CU(device.launch_add(mapped, 1000, turn, stream));
    CU(cuStreamSynchronize(stream));
    for (std::size_t i = 0; i < 1000; ++i) pinned[i] += 1, expected[i] += turn + 1;
  }
  check_words("pinned memory after kernels", pinned, expected);
  CU(cuMemFreeHost(pinned));
  void* another = nullptr;
  CU(cuMemAllocHost(&another, 100));
  std::memset(another, 1, 100);
  CU(cuMemFreeHost(another));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(another));
}

void memsets(const Device&) {
  constexpr std::size_t kCount = 100'000;
  Words words(kCount, 3);
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  CU(cuMemsetD32(words.address, 0xabcd, kCount));
  CU(cuMemsetD16(words.address + 2, 7, 1));
  CU(cuMemsetD8Async(words.address + kCount * 4 - 1, 9, 1, stream));
  CU(cuCtxSynchronize());
  words.expected.assign(kCount, 0xabcd);
  words.expected.front() = 0x7abcd;
  words.expected.back() = 0x0900abcd;
  words.check();
  // Rows of 6 bytes, 64 apart; and of three words, in a stream.
  CU(cuMemsetD2D8(words.address, 64, 0x11, 6, 10));
  CU(cuMemsetD2D32Async(words.address + 64 * 16, 128, 42, 3, 5, stream));
  CU(cuMemsetD2D16(words.address + 64 * 32 * 2, 64, 0x2222, 2, 1));
  CU(cuStreamSynchronize(stream));
  for (std::size_t row = 0; row < 10; ++row) {
    words.expected[row * 16] = 0x11111111;
    words.expected[row * 16 + 1] = (words.expected[row * 16 + 1] & 0xffff0000u) | 0x1111;
  }
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t i = 0; i < 3; ++i) words.expected[256 + row * 32 + i] = 42;
  }
  words.expected[1024] = 0x22222222;
  words.check();
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(words.address + 1, 0, 1));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(words.address + 1, 0, 1));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(words.address, 0, kCount * 4 + 1));
  words.check();
}

void unified_copies(const Device&) {
  Words words(1000, 4);
  std::vector<unsigned> host = indices(1000), found(1000);
  const auto address = [](std::vector<unsigned>& words_at) { return reinterpret_cast<CUdeviceptr>(words_at.data()); };
  CU(cuMemcpy(address(found), words.address, 4000));
  check_words("what cuMemcpy read", found.data(), words.expected);
  CU(cuMemcpy(words.address, address(host), 4000));
  words.expected = host;
  words.check();
  CU(cuMemcpy(address(found), address(host), 4000));
  check_words("what cuMemcpy copied from host to host", found.data(), host);
}

void pointer_facts(const Device& device) {
  Words words(5000, 6);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  CU(cuMemGetAddressRange(&base, &size, words.address + 100));
  require(base == words.address && size == 20000, "cuMemGetAddressRange gave another range");
  unsigned type = 0;
  CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, words.address));
  require(type == CU_MEMORYTYPE_DEVICE, "device memory is of type " + std::to_string(type));
  CUcontext context = nullptr;
  CU(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, words.address));
  require(context == device.context, "device memory belongs to another context");
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&type)));
  std::size_t free_bytes = 0, total_bytes = 0;
  CU(cuMemGetInfo(&free_bytes, &total_bytes));
  require(free_bytes > 0 && free_bytes <= total_bytes, "cuMemGetInfo says that more is free than there is");
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(words.address + 4));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(nullptr, 1));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&base, 0));
  CU(cuMemFree(words.address));
  CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(words.address));
}

}  // namespace mpsshim::test
