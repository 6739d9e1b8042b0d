// SPDX-License-Identifier: Apache-2.0
#include "transfers.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

using test::Failure;

namespace {

constexpr std::size_t kGuard = 64;  // bytes on each side
constexpr int kPoison = 0xA5;
constexpr int kOverwritten = 0x5A;

void require_guard(const std::byte* guard, const char* side) {
  for (std::size_t i = 0; i < kGuard; ++i) {
    if (guard[i] != std::byte{kPoison}) throw Failure(std::string("a download has written ") + side + " its destination");
  }
}

// Memory of a page or more of its own, or malloc's.
class HostMemory {
 public:
  HostMemory(std::size_t bytes, bool is_mapped) : bytes_(bytes), is_mapped_(is_mapped) {
    memory_ = is_mapped ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : std::malloc(bytes);
    test::require(memory_ != nullptr && memory_ != MAP_FAILED, "no host memory");
  }
  HostMemory(const HostMemory&) = delete;
  ~HostMemory() {
    if (is_mapped_)
      munmap(memory_, bytes_);
    else
      std::free(memory_);
  }
  [[nodiscard]] std::byte* get() const { return static_cast<std::byte*>(memory_); }

 private:
  void* memory_;
  std::size_t bytes_;
  bool is_mapped_;
};

}  // namespace

Transfers::Transfers(Workplace& work, std::size_t pinned_bytes) : work_(work), pinned_bytes_(pinned_bytes) {
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned_), pinned_bytes, 0));
  CU(cuEventCreate(&uploaded_, CU_EVENT_DISABLE_TIMING));
}

Transfers::~Transfers() {
  if (work_.process.options.leaves_at_once) return;
  cuMemFreeHost(pinned_);
  cuEventDestroy(uploaded_);
}

void Transfers::upload(const Stream& stream, CUdeviceptr to, std::span<const Word> words) {
  work_.did();
  const std::size_t choice = work_.random.below(4);
  if (choice == 0 && words.size_bytes() <= pinned_bytes_) return upload_pinned(stream, to, words);
  upload_pageable(stream, to, words, choice == 1);
}

// The NULL stream's copies are ordered with blocking streams alone; to others' the host sees. An asynchronous copy may read the memory until it has
// ended, a synchronous one has read it when it returns.
void Transfers::upload_pageable(const Stream& stream, CUdeviceptr to, std::span<const Word> words, bool is_synchronous) {
  const std::size_t bytes = words.size_bytes();
  HostMemory source(bytes, work_.random.below(3) == 0);
  std::memcpy(source.get(), words.data(), bytes);
  work_.history.note(is_synchronous ? "cuMemcpyHtoD" : "cuMemcpyHtoDAsync, cuStreamSynchronize", {{"to", to}, {"bytes", bytes}});
  if (!is_synchronous) {
    CU(cuMemcpyHtoDAsync(to, source.get(), bytes, stream.handle));
    CU(cuStreamSynchronize(stream.handle));
  } else {
    if (!stream.is_blocking) CU(cuStreamSynchronize(stream.handle));
    CU(cuMemcpyHtoD(to, source.get(), bytes));
    if (work_.random.below(2) == 0) std::memset(source.get(), kOverwritten, bytes);
    if (!stream.is_blocking) CU(cuStreamSynchronize(nullptr));
    return;  // where it is freed or unmapped
  }
  std::memset(source.get(), kOverwritten, bytes);
}

void Transfers::upload_pinned(const Stream& stream, CUdeviceptr to, std::span<const Word> words) {
  work_.history.note("cuMemcpyHtoDAsync from pinned memory", {{"to", to}, {"bytes", words.size_bytes()}});
  std::memcpy(pinned_, words.data(), words.size_bytes());
  CU(cuMemcpyHtoDAsync(to, pinned_, words.size_bytes(), stream.handle));
  CU(cuEventRecord(uploaded_, stream.handle));
  CU(cuEventSynchronize(uploaded_));
  std::memset(pinned_, kOverwritten, words.size_bytes());
}

std::vector<Word> Transfers::download(const Stream& stream, CUdeviceptr from, std::size_t count) {
  work_.did();
  const std::size_t bytes = count * sizeof(Word);
  std::vector<Word> words(count);
  if (work_.random.below(3) == 0 && bytes + 2 * kGuard <= pinned_bytes_) {
    std::memset(pinned_, kPoison, bytes + 2 * kGuard);
    download_into(stream, pinned_ + kGuard, from, bytes, true);
    require_guard(pinned_, "in front of");
    require_guard(pinned_ + kGuard + bytes, "behind");
    std::memcpy(words.data(), pinned_ + kGuard, bytes);
    return words;
  }
  const std::size_t at = kGuard + work_.random.below(32);  // at no particular alignment
  const HostMemory destination(at + bytes + kGuard, work_.random.below(3) == 0);
  std::memset(destination.get(), kPoison, at + bytes + kGuard);
  download_into(stream, destination.get() + at, from, bytes, false);
  require_guard(destination.get() + at - kGuard, "in front of");
  require_guard(destination.get() + at + bytes, "behind");
  std::memcpy(words.data(), destination.get() + at, bytes);
  return words;
}

void Transfers::download_into(const Stream& stream, void* to, CUdeviceptr from, std::size_t bytes, bool is_pinned) {
  if (work_.random.below(2) == 0) {
    work_.history.note(is_pinned ? "cuMemcpyDtoHAsync to pinned memory" : "cuMemcpyDtoHAsync", {{"from", from}, {"bytes", bytes}});
    CU(cuMemcpyDtoHAsync(to, from, bytes, stream.handle));
    work_.wait_for(stream);
    return;
  }
  if (!stream.is_blocking) work_.wait_for(stream);
  work_.history.note(is_pinned ? "cuMemcpyDtoH to pinned memory" : "cuMemcpyDtoH", {{"from", from}, {"bytes", bytes}});
  CU(cuMemcpyDtoH(to, from, bytes));
}

}  // namespace mpsshim::soak
