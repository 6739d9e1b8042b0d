// SPDX-License-Identifier: Apache-2.0
// Multiplies two n x n matrices through tiles in shared memory, with barriers; n need not be a multiple of the tile.
#include <vector>

#include "verify.hpp"

constexpr int kTile = 16;

__global__ void multiply(const float* a, const float* b, float* c, int n) {
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int first = 0; first < n; first += kTile) {
    const int k_a = first + threadIdx.x;
    const int k_b = first + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < n && k_a < n ? a[row * n + k_a] : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] = k_b < n && column < n ? b[k_b * n + column] : 0.0f;
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();  // nobody refills a tile that another thread still reads
  }
  if (row < n && column < n) c[row * n + column] = sum;
}

// Small whole numbers: every sum is exact in a float, so the result is compared bit for bit.
static float element_a(int row, int column) { return static_cast<float>((row * 7 + column * 3) % 9 - 4); }
static float element_b(int row, int column) { return static_cast<float>((row * 5 + column * 11) % 7 - 3); }

static std::vector<float> multiply_on_host(const std::vector<float>& a, const std::vector<float>& b, int n) {
  std::vector<float> c(a.size(), 0.0f);
  for (int row = 0; row < n; ++row)
    for (int k = 0; k < n; ++k)
      for (int column = 0; column < n; ++column) c[row * n + column] += a[row * n + k] * b[k * n + column];
  return c;
}

int main(int argc, char** argv) {
  const int n = static_cast<int>(example::number_argument(argc, argv, "matrix_mul [n]", 200, 1, 4096));
  const size_t elements = static_cast<size_t>(n) * n;
  const size_t size_bytes = elements * sizeof(float);
  std::vector<float> a(elements), b(elements), c(elements);
  for (int row = 0; row < n; ++row) {
    for (int column = 0; column < n; ++column) {
      a[row * n + column] = element_a(row, column);
      b[row * n + column] = element_b(row, column);
    }
  }

  float *device_a = nullptr, *device_b = nullptr, *device_c = nullptr;
  CUDA_CHECK(cudaMalloc(&device_a, size_bytes));
  CUDA_CHECK(cudaMalloc(&device_b, size_bytes));
  CUDA_CHECK(cudaMalloc(&device_c, size_bytes));
  CUDA_CHECK(cudaMemcpy(device_a, a.data(), size_bytes, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaMemcpy(device_b, b.data(), size_bytes, cudaMemcpyHostToDevice));
  const dim3 block(kTile, kTile);
  const dim3 grid((n + kTile - 1) / kTile, (n + kTile - 1) / kTile);
  multiply<<<grid, block>>>(device_a, device_b, device_c, n);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpy(c.data(), device_c, size_bytes, cudaMemcpyDeviceToHost));

  const std::vector<float> expected = multiply_on_host(a, b, n);
  example::require_equal("matrix_mul", c.data(), elements, [&](size_t i) { return expected[i]; });
  CUDA_CHECK(cudaFree(device_a));
  CUDA_CHECK(cudaFree(device_b));
  CUDA_CHECK(cudaFree(device_c));
  std::printf("matrix_mul: %d x %d product right.\n", n, n);
  return 0;
}
