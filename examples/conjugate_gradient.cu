// SPDX-License-Identifier: Apache-2.0
// Solves A x = b by conjugate gradients on all devices that there are: each has a slice of the rows, and reads its neighbours' values at the edges.
// The vectors are managed memory, which every device reaches; dot products are made of partial sums that the host adds up. A is the matrix of a chain
// of springs (4 on the diagonal, -1 beside it), and b is made of a solution that is known.
#include <cmath>
#include <vector>

#include "verify.hpp"

namespace {

constexpr int kThreads = 128;
constexpr int kMostIterations = 200;
constexpr double kTolerance = 1e-10;

struct Slice {
  int begin = 0;
  int end = 0;
  cudaStream_t stream = nullptr;
  double* sums = nullptr;  // one a block
  [[nodiscard]] int rows() const { return end - begin; }
  [[nodiscard]] int blocks() const { return (rows() + kThreads - 1) / kThreads; }
};

double solution(int i) { return 1.0 + 0.5 * ((i * 7) % 13); }

}  // namespace

__device__ void add_up(double value, double* sums) {
  __shared__ double shared[kThreads];
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = shared[0];
}

// product = A * direction, and the parts of direction * product.
__global__ void multiply(double* product, const double* direction, double* sums, int begin, int end, int count) {
  const int i = begin + blockIdx.x * blockDim.x + threadIdx.x;
  double part = 0;
  if (i < end) {
    const double left = i > 0 ? direction[i - 1] : 0, right = i + 1 < count ? direction[i + 1] : 0;
    product[i] = 4 * direction[i] - left - right;
    part = direction[i] * product[i];
  }
  add_up(part, sums);
}

// One step along the direction, and the parts of the residual's square.
__global__ void step(double* x, double* residual, const double* direction, const double* product, double alpha, double* sums, int begin, int end) {
  const int i = begin + blockIdx.x * blockDim.x + threadIdx.x;
  double part = 0;
  if (i < end) {
    x[i] += alpha * direction[i];
    residual[i] -= alpha * product[i];
    part = residual[i] * residual[i];
  }
  add_up(part, sums);
}

__global__ void turn(double* direction, const double* residual, double beta, int begin, int end) {
  const int i = begin + blockIdx.x * blockDim.x + threadIdx.x;
  if (i < end) direction[i] = residual[i] + beta * direction[i];
}

namespace {

// launch(slice) on each device, then all of them are waited for.
template <typename Launch>
void on_all(const std::vector<Slice>& slices, Launch launch) {
  for (size_t device = 0; device < slices.size(); ++device) {
    CUDA_CHECK(cudaSetDevice(static_cast<int>(device)));
    if (slices[device].rows() > 0) launch(slices[device]);
    CUDA_CHECK(cudaGetLastError());
  }
  for (size_t device = 0; device < slices.size(); ++device) {
    CUDA_CHECK(cudaSetDevice(static_cast<int>(device)));
    CUDA_CHECK(cudaStreamSynchronize(slices[device].stream));
  }
}

double sum_of(const std::vector<Slice>& slices) {
  double sum = 0;
  for (const Slice& slice : slices) {
    for (int block = 0; block < slice.blocks(); ++block) sum += slice.sums[block];
  }
  return sum;
}

double* managed(int count) {
  double* memory = nullptr;
  CUDA_CHECK(cudaMallocManaged(&memory, static_cast<size_t>(count) * sizeof(double)));
  return memory;
}

}  // namespace

int main(int argc, char** argv) {
  const int count = static_cast<int>(example::number_argument(argc, argv, "conjugate_gradient [rows]", 100000, 1, 1 << 26));
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  double *const x = managed(count), *const residual = managed(count), *const direction = managed(count), *const product = managed(count);
  std::vector<Slice> slices(static_cast<size_t>(devices));
  for (int device = 0; device < devices; ++device) {
    Slice& slice = slices[static_cast<size_t>(device)];
    slice.begin = static_cast<int>(static_cast<long long>(count) * device / devices);
    slice.end = static_cast<int>(static_cast<long long>(count) * (device + 1) / devices);
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaStreamCreate(&slice.stream));
    slice.sums = managed(slice.blocks() + 1);
  }
  double square = 0;
  for (int i = 0; i < count; ++i) {
    const double left = i > 0 ? solution(i - 1) : 0, right = i + 1 < count ? solution(i + 1) : 0;
    x[i] = 0;
    residual[i] = direction[i] = 4 * solution(i) - left - right;
    square += residual[i] * residual[i];
  }
  const double wanted = square * kTolerance * kTolerance;
  int iterations = 0;
  for (; square > wanted && iterations < kMostIterations; ++iterations) {
    on_all(slices, [&](const Slice& slice) {
      multiply<<<slice.blocks(), kThreads, 0, slice.stream>>>(product, direction, slice.sums, slice.begin, slice.end, count);
    });
    const double alpha = square / sum_of(slices);
    on_all(slices, [&](const Slice& slice) {
      step<<<slice.blocks(), kThreads, 0, slice.stream>>>(x, residual, direction, product, alpha, slice.sums, slice.begin, slice.end);
    });
    const double next = sum_of(slices);
    const double beta = next / square;
    square = next;
    on_all(slices,
           [&](const Slice& slice) { turn<<<slice.blocks(), kThreads, 0, slice.stream>>>(direction, residual, beta, slice.begin, slice.end); });
  }
  double worst = 0;
  for (int i = 0; i < count; ++i) worst = std::fmax(worst, std::fabs(x[i] - solution(i)));
  if (!(worst < 1e-6)) {
    std::fprintf(stderr, "conjugate_gradient: after %d iterations the solution is wrong by %g\n", iterations, worst);
    return EXIT_FAILURE;
  }
  for (double* memory : {x, residual, direction, product}) CUDA_CHECK(cudaFree(memory));
  for (Slice& slice : slices) {
    CUDA_CHECK(cudaFree(slice.sums));
    CUDA_CHECK(cudaStreamDestroy(slice.stream));
  }
  std::printf("conjugate_gradient: %d rows on %d device%s, %d iterations, solution right.\n", count, devices, devices == 1 ? "" : "s", iterations);
  return 0;
}
