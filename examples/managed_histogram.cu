// SPDX-License-Identifier: Apache-2.0
// Counts values into __managed__ variables that host and kernels read and write at one address, several rounds without a copy.
#include "verify.hpp"

constexpr int kBins = 16;

__managed__ unsigned histogram[kBins];
__managed__ unsigned step = 3;      // begins as the program says
__managed__ unsigned* largest_bin;  // an address that a kernel leaves for the host

__global__ void count(unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&histogram[i * step % kBins], 1u);
}

__global__ void find_largest() {
  largest_bin = histogram;
  for (int i = 1; i < kBins; ++i) {
    if (histogram[i] > *largest_bin) largest_bin = &histogram[i];
  }
}

int main(int argc, char** argv) {
  const auto n = static_cast<unsigned>(example::number_argument(argc, argv, "managed_histogram [values]", 100000, 16, 1e8));
  unsigned expected[kBins] = {};
  for (int round = 0; round < 4; ++round) {
    count<<<(n + 255) / 256, 256>>>(n);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < n; ++i) ++expected[static_cast<unsigned long long>(i) * step % kBins];
    example::require_equal("managed_histogram", histogram, kBins, [&](size_t i) { return expected[i]; });
    // The next round begins with what the host leaves here.
    step += 2;
    histogram[round] += 7;
    expected[round] += 7;
  }
  histogram[11] = expected[11] = 4 * n + 100;
  find_largest<<<1, 1>>>();
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  if (largest_bin != &histogram[11]) {
    std::fprintf(stderr, "managed_histogram: the largest bin is at %p, expected %p\n", static_cast<void*>(largest_bin),
                 static_cast<void*>(&histogram[11]));
    return EXIT_FAILURE;
  }
  std::printf("managed_histogram: %u values in %d bins right.\n", n, kBins);
  return EXIT_SUCCESS;
}
