// SPDX-License-Identifier: Apache-2.0
// What managed memory costs, a row each, in milliseconds: run it natively and through a broker (docs/experiments say how). Every value that is read
// is checked; a wrong one is said and makes the exit status 1. Not part of the build: nvcc -O2 -arch=native -o managed_rows managed_rows.cu
//   managed_rows [MIB [LEFT_MIB]]     256 if none is named. With LEFT_MIB the device is filled until so much is left, and 1.2 times that is managed:
//                                     natively only where the host has memory to spare for all of it
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

bool is_wrong = false;

#define OK(call)                                                  \
  do {                                                            \
    const cudaError_t error_ = (call);                            \
    if (error_ != cudaSuccess) {                                  \
      std::printf("%s: %s\n", #call, cudaGetErrorString(error_)); \
      std::exit(2);                                               \
    }                                                             \
  } while (false)

__global__ void increment(unsigned* words, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) words[i] += 1;
}
__global__ void add_atomically(unsigned* words, unsigned count, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) atomicAdd_system(words + i, 1u);
  }
}

template <class F>
double ms(F&& f) {
  const auto began = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

void expect(unsigned found, unsigned wanted, const char* what) {
  if (found == wanted) return;
  std::printf("WRONG: %s: %u instead of %u\n", what, found, wanted);
  is_wrong = true;
}

void run(unsigned* words, size_t count) {
  increment<<<1024, 256>>>(words, count);
  OK(cudaGetLastError());
  OK(cudaDeviceSynchronize());
}

unsigned look(const volatile unsigned* words, size_t count, unsigned wanted, size_t step) {
  unsigned different = 0;
  for (size_t i = 0; i < count; i += step) different += words[i] != wanted;
  return different;
}

void row(const char* name, double value, double gigabytes = 0) {
  std::printf("%-44s %10.3f ms", name, value);
  if (gigabytes != 0) std::printf("  %8.2f GB/s", gigabytes / value * 1000);
  std::printf("\n");
}

void whole(size_t mib) {
  const size_t bytes = mib << 20, count = bytes / 4;
  const double gb = static_cast<double>(bytes) / 1e9;
  unsigned* words = nullptr;
  row("allocate", ms([&] { OK(cudaMallocManaged(&words, bytes)); }));
  row("host writes all, first time", ms([&] { std::fill_n(words, count, 1u); }), gb);
  row("kernel, first touch", ms([&] { run(words, count); }), 2 * gb);
  double best = 1e9;
  for (int i = 0; i < 10; ++i) best = std::min(best, ms([&] { run(words, count); }));
  row("kernel, resident (best of 10)", best, 2 * gb);
  constexpr int kInARow = 20;
  row("kernel, resident, one of 20 in a row", ms([&] {
                                                for (int i = 0; i < kInARow; ++i) increment<<<1024, 256>>>(words, count);
                                                OK(cudaGetLastError());
                                                OK(cudaDeviceSynchronize());
                                              }) / kInARow,
      2 * gb);
  row("host reads a word a page", ms([&] { expect(look(words, count, 32, 1024), 0, "a word a page"); }), gb);
  row("host reads all, again", ms([&] { expect(look(words, count, 32, 1), 0, "all"); }), gb);
  row("kernel behind a look", ms([&] { run(words, count); }), 2 * gb);
  row("host reads all", ms([&] { expect(look(words, count, 33, 1), 0, "all after a kernel"); }), gb);
  row("host adds to all", ms([&] {
        for (size_t i = 0; i < count; ++i) words[i] += 1;
      }),
      gb);
  row("kernel behind the host's writes", ms([&] { run(words, count); }), 2 * gb);
  OK(cudaFree(words));
}

void ping_pong(size_t bytes, int rounds) {
  const size_t count = bytes / 4;
  unsigned* words = nullptr;
  OK(cudaMallocManaged(&words, bytes));
  std::memset(words, 0, bytes);
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    times.push_back(ms([&] {
      for (size_t i = 0; i < count; ++i) words[i] += 1;
      run(words, count);
      expect(look(words, count, 2u * round + 2, 1), 0, "ping-pong");
    }));
  }
  std::sort(times.begin(), times.end());
  char name[64];
  std::snprintf(name, sizeof name, "ping-pong of %zu KiB, median of %d", bytes >> 10, rounds);
  row(name, times[times.size() / 2]);
  OK(cudaFree(words));
}

#if CUDART_VERSION >= 13000
cudaError_t prefetch(void* words, size_t bytes, int device) {
  cudaMemLocation location{};
  location.type = device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  location.id = device < 0 ? 0 : device;
  return cudaMemPrefetchAsync(words, bytes, location, 0, nullptr);
}
#else
cudaError_t prefetch(void* words, size_t bytes, int device) {
  return cudaMemPrefetchAsync(words, bytes, device < 0 ? cudaCpuDeviceId : device, nullptr);
}
#endif

void prefetches(size_t mib) {
  const size_t bytes = mib << 20, count = bytes / 4;
  const double gb = static_cast<double>(bytes) / 1e9;
  unsigned* words = nullptr;
  OK(cudaMallocManaged(&words, bytes));
  std::fill_n(words, count, 1u);
  const auto to = [&](int device) {
    OK(prefetch(words, bytes, device));
    OK(cudaDeviceSynchronize());
  };
  row("prefetch to the device", ms([&] { to(0); }), gb);
  row("kernel behind that prefetch", ms([&] { run(words, count); }), 2 * gb);
  row("prefetch to the host", ms([&] { to(-1); }), gb);
  row("host reads all behind that prefetch", ms([&] { expect(look(words, count, 2, 1), 0, "behind a prefetch"); }), gb);
  OK(cudaFree(words));
}

// What pinned memory gets, for comparison.
void pinned(size_t mib) {
  const size_t bytes = mib << 20;
  void *host = nullptr, *device = nullptr;
  OK(cudaMallocHost(&host, bytes));
  OK(cudaMalloc(&device, bytes));
  std::memset(host, 1, bytes);
  for (const cudaMemcpyKind kind : {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost}) {
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      best = std::min(
          best, ms([&] { OK(kind == cudaMemcpyHostToDevice ? cudaMemcpy(device, host, bytes, kind) : cudaMemcpy(host, device, bytes, kind)); }));
    }
    row(kind == cudaMemcpyHostToDevice ? "pinned copy to the device (best of 5)" : "pinned copy to the host (best of 5)", best,
        static_cast<double>(bytes) / 1e9);
  }
  OK(cudaFree(device));
  OK(cudaFreeHost(host));
}

void atomics() {
  constexpr unsigned kWords = 1000, kRounds = 2000;
  unsigned* words = nullptr;
  OK(cudaMallocManaged(&words, kWords * 4));
  std::memset(words, 0, kWords * 4);
  const double time = ms([&] {
    add_atomically<<<1, 256>>>(words, kWords, kRounds);
    OK(cudaGetLastError());
    for (unsigned round = 0; round < kRounds; ++round) {
      for (unsigned i = 0; i < kWords; ++i) __atomic_fetch_add(words + i, 1u, __ATOMIC_SEQ_CST);
    }
    OK(cudaDeviceSynchronize());
  });
  unsigned wrong = 0;
  for (unsigned i = 0; i < kWords; ++i) wrong += words[i] != 2 * kRounds;
  expect(wrong, 0, "sums of which host and kernel add at once");
  row("host and kernel add atomically at once", time);
  OK(cudaFree(words));
}

// Twelve pieces, of which ten would fit on the device.
void oversubscribed(size_t left_mib) {
  constexpr int kPieces = 12, kFit = 10;
  size_t free_bytes = 0, total_bytes = 0;
  OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const size_t left = left_mib << 20, bytes = left / kFit, count = bytes / 4;
  void* filling = nullptr;
  if (free_bytes > left) OK(cudaMalloc(&filling, free_bytes - left));
  const double gb = static_cast<double>(kPieces * bytes) / 1e9;
  std::vector<unsigned*> pieces(kPieces);
  const auto kernels = [&] {
    for (unsigned* piece : pieces) increment<<<1024, 256>>>(piece, count);
    OK(cudaGetLastError());
    OK(cudaDeviceSynchronize());
  };
  std::printf("oversubscribed: %d pieces of %zu MiB, %zu MiB of the device left\n", kPieces, bytes >> 20, left_mib);
  row("allocate all", ms([&] {
        for (unsigned*& piece : pieces) OK(cudaMallocManaged(&piece, bytes));
      }));
  row("host writes all", ms([&] {
        for (unsigned* piece : pieces) std::fill_n(piece, count, 1u);
      }),
      gb);
  row("kernels over all, first touch", ms(kernels), 2 * gb);
  row("kernels over all, again", ms(kernels), 2 * gb);
  row("host reads all", ms([&] {
        for (unsigned* piece : pieces) expect(look(piece, count, 3, 1), 0, "an oversubscribed piece");
      }),
      gb);
  for (unsigned* piece : pieces) OK(cudaFree(piece));
  OK(cudaFree(filling));
}

}  // namespace

int main(int argc, char** argv) {
  const size_t mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 256;
  int concurrent = 0;
  OK(cudaFree(nullptr));
  OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  std::printf("concurrent managed access: %d, %zu MiB\n", concurrent, mib);
  pinned(mib);
  {
    unsigned* warm = nullptr;  // the module is loaded, whatever else a first launch does is done
    OK(cudaMalloc(&warm, 4096));
    run(warm, 1024);
    OK(cudaFree(warm));
  }
  whole(mib);
  ping_pong(4 << 10, 200);
  ping_pong(2 << 20, 50);
  ping_pong(mib << 20, 5);
  prefetches(mib);
  atomics();
  if (argc > 2) oversubscribed(std::strtoul(argv[2], nullptr, 10));
  std::printf(is_wrong ? "WRONG values were seen\n" : "all values right\n");
  return is_wrong ? 1 : 0;
}
