// SPDX-License-Identifier: Apache-2.0
// Two devices that reach each other's memory: copies there and back, and a kernel of each on the other's memory. Where the hardware does not let
// them, the copies are made all the same, and the kernels work on copies.
#include <vector>

#include "verify.hpp"

__global__ void scale_into(float* to, const float* from, float factor, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i] * factor;
}

namespace {

struct Side {
  float* data = nullptr;
  float* result = nullptr;
};

float value(size_t i) { return static_cast<float>(i % 4096) * 0.25f; }

}  // namespace

int main(int argc, char** argv) {
  const int count = static_cast<int>(example::number_argument(argc, argv, "peer_copy [count]", 1 << 22, 1, 1 << 28));
  const size_t size_bytes = static_cast<size_t>(count) * sizeof(float);
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  if (devices < 2) {
    std::fprintf(stderr, "peer_copy: it needs two devices, and sees %d.\n", devices);
    return 2;
  }
  Side sides[2];
  int reaches[2] = {};
  for (int i = 0; i < 2; ++i) {
    CUDA_CHECK(cudaSetDevice(i));
    CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches[i], i, 1 - i));
    if (reaches[i] != 0) CUDA_CHECK(cudaDeviceEnablePeerAccess(1 - i, 0));
    CUDA_CHECK(cudaMalloc(&sides[i].data, size_bytes));
    CUDA_CHECK(cudaMalloc(&sides[i].result, size_bytes));
  }
  std::vector<float> host(static_cast<size_t>(count)), result(host.size());
  for (size_t i = 0; i < host.size(); ++i) host[i] = value(i);

  // Through both devices and back.
  CUDA_CHECK(cudaSetDevice(0));
  CUDA_CHECK(cudaMemcpy(sides[0].data, host.data(), size_bytes, cudaMemcpyHostToDevice));
  const auto start = std::chrono::steady_clock::now();
  const int rounds = 4;
  for (int round = 0; round < rounds; ++round) {
    CUDA_CHECK(cudaMemcpyPeer(sides[1].data, 1, sides[0].data, 0, size_bytes));
    CUDA_CHECK(cudaMemcpyPeer(sides[0].data, 0, sides[1].data, 1, size_bytes));
  }
  for (int i = 0; i < 2; ++i) {
    CUDA_CHECK(cudaSetDevice(i));
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  const double seconds = example::seconds_since(start);
  for (Side& side : sides) {
    CUDA_CHECK(cudaMemcpy(result.data(), side.data, size_bytes, cudaMemcpyDefault));
    example::require_equal("peer_copy", result.data(), result.size(), value);
  }

  // Each device reads the other's memory, or a copy of it.
  for (int i = 0; i < 2; ++i) {
    CUDA_CHECK(cudaSetDevice(i));
    const float factor = static_cast<float>(i + 2);
    const float* const from = reaches[i] != 0 ? sides[1 - i].data : sides[i].data;
    scale_into<<<(count + 255) / 256, 256>>>(sides[i].result, from, factor, count);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(result.data(), sides[i].result, size_bytes, cudaMemcpyDeviceToHost));
    example::require_equal("peer_copy", result.data(), result.size(), [&](size_t at) { return value(at) * factor; });
  }
  for (int i = 0; i < 2; ++i) {
    CUDA_CHECK(cudaSetDevice(i));
    CUDA_CHECK(cudaFree(sides[i].data));
    CUDA_CHECK(cudaFree(sides[i].result));
  }
  std::printf("peer_copy: %d floats between two devices right (%s, %.2f GB/s there and back).\n", count,
              reaches[0] != 0 && reaches[1] != 0 ? "which are peers" : "which are no peers",
              2.0 * rounds * static_cast<double>(size_bytes) / seconds / 1e9);
  return 0;
}
