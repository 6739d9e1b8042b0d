// SPDX-License-Identifier: Apache-2.0
// Copies from and to pageable memory: sizes around every limit of a piecewise copy, what may still be under way when a call returns, many at
// once (CUDA Driver API manual, "API synchronization behavior").
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

namespace {

using Bytes = std::vector<unsigned char>;

void fill(Bytes& bytes, unsigned seed) {
  unsigned state = seed * 2654435761u + 1;
  for (unsigned char& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<unsigned char>(state >> 24);
  }
}

// Opens the gate a while after a call that must, or must not, wait for it.
class LateOpener {
 public:
  explicit LateOpener(SharedWord& gate, std::chrono::milliseconds after = 60ms)
      : thread_([&gate, after] {
          std::this_thread::sleep_for(after);
          *gate = 1;
        }) {}
  ~LateOpener() { thread_.join(); }
  LateOpener(const LateOpener&) = delete;
  LateOpener& operator=(const LateOpener&) = delete;

 private:
  std::thread thread_;
};

struct Spinner {
  LoadedImage image;
  CUfunction spin = image.function("spin");
};

}  // namespace

TEST_CASE("pageable copies of sizes around every limit arrive whole, and alone", "[forwarded]") {
  const DeviceContext context;
  constexpr size_t kKiB = 1024;
  constexpr size_t kMargin = 16;
  constexpr size_t kMost = (9 << 20) + 13;
  Bytes there(kMost + 2 * kMargin);
  fill(there, 1);
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, kMost + 2 * kMargin));
  for (const size_t limit : {1 * kKiB, 4 * kKiB, 16 * kKiB, 64 * kKiB, 128 * kKiB, 512 * kKiB, 1024 * kKiB, 4096 * kKiB, kMost - 1}) {
    for (const size_t size : {limit - 1, limit, limit + 1}) {
      const size_t odd = size % kMargin;
      OK(CU(cuMemsetD8)(device, 0xee, size + 2 * kMargin));
      OK(CU(cuMemcpyHtoD)(device + kMargin, there.data() + odd, size));
      Bytes back(size + 2 * kMargin, 0x55);
      OK(CU(cuMemcpyDtoH)(back.data() + kMargin, device + kMargin, size));
      INFO(size);
      REQUIRE(std::memcmp(back.data() + kMargin, there.data() + odd, size) == 0);
      for (size_t i = 0; i < kMargin; ++i) REQUIRE((back[i] == 0x55 && back[kMargin + size + i] == 0x55));
      OK(CU(cuMemcpyDtoH)(back.data(), device, kMargin));
      OK(CU(cuMemcpyDtoH)(back.data() + kMargin, device + kMargin + size, kMargin));
      for (size_t i = 0; i < 2 * kMargin; ++i) REQUIRE(back[i] == 0xee);
    }
  }
  OK(CU(cuMemFree)(device));
}

TEST_CASE("a pageable source may change as soon as its copy has returned", "[forwarded]") {
  const DeviceContext context;
  const size_t size = GENERATE(size_t{64}, size_t{4096}, size_t{100'000}, size_t{3} << 20);
  constexpr int kCopies = 12;
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, size * kCopies));
  const CUstream stream = new_stream();
  const bool by_stream = GENERATE(false, true);
  Bytes source(size);
  for (int i = 0; i < kCopies; ++i) {
    std::memset(source.data(), i + 1, size);
    if (by_stream) {
      OK(CU(cuMemcpyHtoDAsync)(device + i * size, source.data(), size, stream));
    } else {
      OK(CU(cuMemcpyHtoD)(device + i * size, source.data(), size));
    }
    std::memset(source.data(), 0xff, size);
  }
  OK(CU(cuCtxSynchronize)());
  Bytes back(size * kCopies);
  OK(CU(cuMemcpyDtoH)(back.data(), device, back.size()));
  for (size_t i = 0; i < back.size(); ++i) {
    if (back[i] != i / size + 1) FAIL("byte " << i << " of " << size << "-byte copies is " << int{back[i]});
  }
  OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuMemFree)(device));
}

TEST_CASE("asynchronous pageable copies behind a kernel that waits for its host return", "[forwarded]") {
  const DeviceContext context;
  const Spinner kernels;
  SharedWord gate;
  const CUstream held = new_stream();
  const CUstream other = new_stream();
  constexpr size_t kPiece = 4096;
  constexpr int kCopies = 500;  // 2 MB: more than a client stages at first, less than any driver does
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, kPiece * kCopies));
  Bytes source(kPiece);
  OK(launch(kernels.spin, held, 1, 1, gate.address()));
  for (int i = 0; i < kCopies; ++i) {
    fill(source, static_cast<unsigned>(i));
    OK(CU(cuMemcpyHtoDAsync)(device + i * kPiece, source.data(), kPiece, held));
  }
  CHECK(CU(cuStreamQuery)(held) == CUDA_ERROR_NOT_READY);
  // Nor does another stream's copy wait for the held one.
  CUdeviceptr elsewhere = 0;
  OK(CU(cuMemAlloc)(&elsewhere, 1 << 20));
  Bytes big(1 << 20);
  fill(big, 77);
  OK(CU(cuMemcpyHtoDAsync)(elsewhere, big.data(), big.size(), other));
  Bytes big_back(big.size());
  OK(CU(cuMemcpyDtoHAsync)(big_back.data(), elsewhere, big.size(), other));
  OK(CU(cuStreamSynchronize)(other));
  CHECK(big_back == big);
  CHECK(CU(cuStreamQuery)(held) == CUDA_ERROR_NOT_READY);
  *gate = 1;
  OK(CU(cuStreamSynchronize)(held));
  Bytes back(kPiece * kCopies);
  OK(CU(cuMemcpyDtoH)(back.data(), device, back.size()));
  for (int i = 0; i < kCopies; ++i) {
    fill(source, static_cast<unsigned>(i));
    INFO(i);
    REQUIRE(std::memcmp(back.data() + i * kPiece, source.data(), kPiece) == 0);
  }
  for (const CUstream stream : {held, other}) OK(CU(cuStreamDestroy)(stream));
  for (const CUdeviceptr address : {device, elsewhere}) OK(CU(cuMemFree)(address));
}

TEST_CASE("a synchronous copy to the device waits for earlier work of its stream, and for no other's", "[forwarded]") {
  const DeviceContext context;
  const Spinner kernels;
  const size_t size = GENERATE(size_t{16}, size_t{4096}, size_t{2} << 20);
  Bytes source(size, 3);
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, size));
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  const CUstream free_running = new_stream();
  for (const CUstream stream : {CUstream{nullptr}, blocking}) {
    SharedWord gate;
    OK(CU(cuMemcpyHtoD)(device, source.data(), size));  // an earlier copy is nothing that it waits for, nor does it hide the kernel
    OK(launch(kernels.spin, stream, 1, 1, gate.address()));
    const LateOpener opener(gate);
    OK(CU(cuMemcpyHtoD)(device, source.data(), size));
    CHECK(*gate == 1);
  }
  SharedWord gate;
  OK(launch(kernels.spin, free_running, 1, 1, gate.address()));
  gate.wait_for_spinning();
  OK(CU(cuMemcpyHtoD)(device, source.data(), size));
  CHECK(*gate == 0);
  *gate = 1;
  for (const CUstream stream : {blocking, free_running}) OK(CU(cuStreamDestroy)(stream));
  OK(CU(cuMemFree)(device));
}

TEST_CASE("a copy to pinned memory has been made when the call returns", "[forwarded]") {
  const DeviceContext context;
  constexpr size_t kSize = (1 << 20) + 5;
  void* memory = nullptr;
  OK(CU(cuMemHostAlloc)(&memory, kSize, 0));
  auto* const pinned = static_cast<unsigned char*>(memory);
  CUdeviceptr device = 0;
  OK(CU(cuMemAlloc)(&device, kSize));
  Bytes source(kSize);
  for (unsigned turn = 0; turn < 8; ++turn) {
    fill(source, turn);
    OK(CU(cuMemcpyHtoD)(device, source.data(), kSize));
    OK(CU(cuMemcpyDtoH)(pinned, device, kSize));
    REQUIRE(std::memcmp(pinned, source.data(), kSize) == 0);
    fill(source, turn + 100);
    OK(CU(cuMemcpy)(reinterpret_cast<CUdeviceptr>(pinned), reinterpret_cast<CUdeviceptr>(source.data()), kSize));
    REQUIRE(std::memcmp(pinned, source.data(), kSize) == 0);
  }
  OK(CU(cuMemFree)(device));
  OK(CU(cuMemFreeHost)(pinned));
}

TEST_CASE("many threads copy at once, each on a stream of its own", "[forwarded]") {
  const DeviceContext context;
  constexpr unsigned kThreads = 8;
  constexpr size_t kMost = 3 << 20;
  std::atomic<int> wrong{0};
  std::vector<CUdeviceptr> memory(kThreads);
  for (CUdeviceptr& address : memory) OK(CU(cuMemAlloc)(&address, kMost));
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      CUstream stream = nullptr;
      if (CU(cuCtxSetCurrent)(context.handle()) != CUDA_SUCCESS || CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
        ++wrong;
        return;
      }
      for (unsigned turn = 0; turn < 10; ++turn) {
        Bytes there((turn % 3 == 0 ? 100 : turn % 3 == 1 ? 70'000 : kMost - 4096) + thread * 97 + turn);
        fill(there, thread * 100 + turn);
        Bytes back(there.size());
        if (CU(cuMemcpyHtoDAsync)(memory[thread], there.data(), there.size(), stream) != CUDA_SUCCESS) ++wrong;
        if (CU(cuMemcpyDtoHAsync)(back.data(), memory[thread], back.size(), stream) != CUDA_SUCCESS) ++wrong;
        if (CU(cuStreamSynchronize)(stream) != CUDA_SUCCESS || back != there) ++wrong;
      }
      CU(cuStreamDestroy)(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  for (const CUdeviceptr address : memory) OK(CU(cuMemFree)(address));
}
