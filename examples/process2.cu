// SPDX-License-Identifier: Apache-2.0
// Process 2 of two that share a GPU: doubles a million floats, again and again for `seconds`, once where none are given.
#include <vector>

#include "verify.hpp"

__global__ void twice(float* data, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= 2.0f;
}

int main(int argc, char** argv) {
  const double seconds = example::number_argument(argc, argv, "process2 [seconds]", 0, 0, 3600);
  const int count = 1 << 20;
  const size_t size_bytes = count * sizeof(float);
  // Halves below a million: exact in a float, before and after.
  std::vector<float> initial(count), result(count);
  for (int i = 0; i < count; ++i) initial[i] = static_cast<float>(i) * 0.5f;

  float* device_data = nullptr;
  CUDA_CHECK(cudaMalloc(&device_data, size_bytes));
  const auto start = std::chrono::steady_clock::now();
  int rounds = 0;
  do {
    CUDA_CHECK(cudaMemcpy(device_data, initial.data(), size_bytes, cudaMemcpyHostToDevice));
    twice<<<(count + 255) / 256, 256>>>(device_data, count);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(result.data(), device_data, size_bytes, cudaMemcpyDeviceToHost));
    example::require_equal("process2", result.data(), result.size(), [&](size_t i) { return initial[i] * 2.0f; });
    ++rounds;
  } while (example::seconds_since(start) < seconds);
  CUDA_CHECK(cudaFree(device_data));
  if (seconds > 0) std::printf("Process 2: %d rounds of %d floats, all right.\n", rounds, count);
  std::printf("Process 2 done.\n");
  return 0;
}
