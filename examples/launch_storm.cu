// SPDX-License-Identifier: Apache-2.0
// A hundred thousand tiny launches, each needing what the one before it left: a lost, doubled or reordered launch
// changes the result. Prints the rate.
#include <cstdint>

#include "verify.hpp"

constexpr int kLanes = 32;

// The step of a linear congruential generator; `index` makes it depend on the order.
__host__ __device__ inline uint32_t step(uint32_t state, uint32_t index) { return (state ^ index) * 1664525u + 1013904223u; }

__global__ void advance(uint32_t* state, uint32_t index) { state[threadIdx.x] = step(state[threadIdx.x], index); }

int main(int argc, char** argv) {
  const auto launches = static_cast<uint32_t>(example::number_argument(argc, argv, "launch_storm [launches]", 100000, 1, 1e9));
  uint32_t state[kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) state[lane] = lane * 2654435761u;

  uint32_t* device_state = nullptr;
  CUDA_CHECK(cudaMalloc(&device_state, sizeof state));
  CUDA_CHECK(cudaMemcpy(device_state, state, sizeof state, cudaMemcpyHostToDevice));
  // The first launch loads the module; it belongs to the result, not to the rate.
  advance<<<1, kLanes>>>(device_state, 0);
  CUDA_CHECK(cudaDeviceSynchronize());

  const auto start = std::chrono::steady_clock::now();
  for (uint32_t i = 1; i < launches; ++i) {
    advance<<<1, kLanes>>>(device_state, i);
    if (i % 65536 == 0) CUDA_CHECK(cudaGetLastError());  // a storm that can no longer succeed ends early
  }
  const double issued_s = example::seconds_since(start);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaDeviceSynchronize());
  const double finished_s = example::seconds_since(start);

  uint32_t result[kLanes];
  CUDA_CHECK(cudaMemcpy(result, device_state, sizeof result, cudaMemcpyDeviceToHost));
  CUDA_CHECK(cudaFree(device_state));
  example::require_equal("launch_storm", result, kLanes, [&](size_t lane) {
    uint32_t expected = state[lane];
    for (uint32_t i = 0; i < launches; ++i) expected = step(expected, i);
    return expected;
  });
  const double timed = launches > 1 ? launches - 1 : 1;
  std::printf("launch_storm: %u dependent launches right, %.0f launches/s, %.3f us a call.\n", launches, timed / finished_s, issued_s / timed * 1e6);
  return 0;
}
