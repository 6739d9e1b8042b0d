// SPDX-License-Identifier: Apache-2.0
// What managed memory costs whose preferred place is the host, a row each: run it natively and through a broker (docs/experiments say how). Every
// value that is read is checked; a wrong one is said and makes the exit status 1. A program of its own, since managed_rows.cu has kernels whose
// atomic operations exclude the host's. Not part of the build: nvcc -O2 -arch=native -o managed_advice_rows managed_advice_rows.cu
//   managed_advice_rows [MIB]     256 if none is named
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
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
// Says each number that it is told, up to the last.
__global__ void echo(volatile unsigned* told, volatile unsigned* said, unsigned last) {
  for (unsigned number = 0; number != last;) {
    const unsigned now = *told;
    if (now == number) continue;
    __threadfence_system();
    *said = number = now;
    __threadfence_system();
  }
}

template <class F>
double ms(F&& f) {
  const auto began = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

void row(const char* name, double value) { std::printf("%-52s %10.3f ms\n", name, value); }

void run(unsigned* words, size_t count) {
  increment<<<1024, 256>>>(words, count);
  OK(cudaGetLastError());
  OK(cudaDeviceSynchronize());
}

void expect_all(const volatile unsigned* words, size_t count, unsigned wanted, const char* what) {
  size_t different = 0;
  for (size_t i = 0; i < count; ++i) different += words[i] != wanted;
  if (different == 0) return;
  std::printf("WRONG: %s: %zu words are not %u\n", what, different, wanted);
  is_wrong = true;
}

void prefer(unsigned* words, size_t bytes, bool is_host) {
#if CUDART_VERSION >= 13000
  cudaMemLocation host{};
  host.type = cudaMemLocationTypeHost;
#else
  const int host = cudaCpuDeviceId;
#endif
  OK(cudaMemAdvise(words, bytes, is_host ? cudaMemAdviseSetPreferredLocation : cudaMemAdviseUnsetPreferredLocation, host));
}

// The median of so many numbers to the kernel and back.
void converse(const char* name, bool is_advised, unsigned rounds) {
  unsigned* words = nullptr;
  OK(cudaMallocManaged(&words, 8192));
  volatile unsigned *told = words, *said = words + 1024;
  *told = *said = 0;
  if (is_advised) prefer(words, 8192, true);
  echo<<<1, 1>>>(words, words + 1024, rounds);
  OK(cudaGetLastError());
  std::vector<double> times;
  for (unsigned number = 1; number <= rounds; ++number) {
    times.push_back(ms([&] {
      *told = number;
      while (*said != number) {
      }
    }));
  }
  OK(cudaDeviceSynchronize());
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  row(name, times[rounds / 2]);
  OK(cudaFree(words));
}

void whole(size_t mib) {
  const size_t bytes = mib << 20, count = bytes / 4;
  unsigned* words = nullptr;
  OK(cudaMallocManaged(&words, bytes));
  std::fill_n(words, count, 1u);
  run(words, count);
  row("advice, of what is on the device", ms([&] { prefer(words, bytes, true); }));
  row("host reads all", ms([&] { expect_all(words, count, 2, "behind the advice"); }));
  row("kernel over all", ms([&] { run(words, count); }));
  row("kernel over all, again", ms([&] { run(words, count); }));
  row("host reads all, behind kernels", ms([&] { expect_all(words, count, 4, "behind kernels"); }));
  row("advice taken back", ms([&] { prefer(words, bytes, false); }));
  row("kernel over all, behind that", ms([&] { run(words, count); }));
  row("kernel over all, again", ms([&] { run(words, count); }));
  expect_all(words, count, 6, "at the end");
  prefer(words, bytes, true);
  row("free, on the host", ms([&] { OK(cudaFree(words)); }));
}

}  // namespace

int main(int argc, char** argv) {
  const size_t mib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 256;
  OK(cudaFree(nullptr));
  unsigned* warm = nullptr;
  OK(cudaMalloc(&warm, 4096));
  run(warm, 1024);
  OK(cudaFree(warm));
  converse("a number to a kernel and back, the host preferred", true, 2'000);
  converse("a number to a kernel and back, nothing advised", false, 100);
  whole(mib);
  std::printf(is_wrong ? "WRONG values were seen\n" : "all values right\n");
  return is_wrong ? 1 : 0;
}
