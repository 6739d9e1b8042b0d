// SPDX-License-Identifier: Apache-2.0
// The sum of an array by all devices that there are, a part each: pinned memory, a stream and an event on every device, and none waits for another.
#include <vector>

#include "verify.hpp"

// One partial sum a thread.
__global__ void partial_sums(const unsigned* values, unsigned long long* sums, unsigned count) {
  unsigned long long sum = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += values[i];
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

namespace {

constexpr unsigned kBlocks = 16;
constexpr unsigned kThreads = 128;
constexpr unsigned kSums = kBlocks * kThreads;

struct Part {
  unsigned count = 0;
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  unsigned* values = nullptr;
  unsigned* device_values = nullptr;
  unsigned long long* sums = nullptr;
  unsigned long long* device_sums = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const auto count = static_cast<unsigned>(example::number_argument(argc, argv, "sum_on_all [count]", 1 << 24, 1, 1 << 30));
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  std::vector<Part> parts(static_cast<size_t>(devices));
  unsigned long long expected = 0;
  unsigned next = 0;
  for (int i = 0; i < devices; ++i) {
    Part& part = parts[static_cast<size_t>(i)];
    part.count = count / static_cast<unsigned>(devices) + (static_cast<unsigned>(i) < count % static_cast<unsigned>(devices) ? 1 : 0);
    CUDA_CHECK(cudaSetDevice(i));
    CUDA_CHECK(cudaStreamCreate(&part.stream));
    CUDA_CHECK(cudaEventCreateWithFlags(&part.done, cudaEventDisableTiming));
    CUDA_CHECK(cudaMallocHost(&part.values, (part.count + 1) * sizeof(unsigned)));
    CUDA_CHECK(cudaMallocHost(&part.sums, kSums * sizeof(unsigned long long)));
    CUDA_CHECK(cudaMalloc(&part.device_values, (part.count + 1) * sizeof(unsigned)));
    CUDA_CHECK(cudaMalloc(&part.device_sums, kSums * sizeof(unsigned long long)));
    for (unsigned at = 0; at < part.count; ++at, ++next) {
      part.values[at] = next * 2654435761u;
      expected += part.values[at];
    }
  }
  for (int i = 0; i < devices; ++i) {
    Part& part = parts[static_cast<size_t>(i)];
    CUDA_CHECK(cudaSetDevice(i));
    CUDA_CHECK(cudaMemcpyAsync(part.device_values, part.values, part.count * sizeof(unsigned), cudaMemcpyHostToDevice, part.stream));
    partial_sums<<<kBlocks, kThreads, 0, part.stream>>>(part.device_values, part.device_sums, part.count);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaMemcpyAsync(part.sums, part.device_sums, kSums * sizeof(unsigned long long), cudaMemcpyDeviceToHost, part.stream));
    CUDA_CHECK(cudaEventRecord(part.done, part.stream));
  }
  unsigned long long sum = 0;
  for (int i = 0; i < devices; ++i) {
    Part& part = parts[static_cast<size_t>(i)];
    CUDA_CHECK(cudaSetDevice(i));
    CUDA_CHECK(cudaEventSynchronize(part.done));
    for (unsigned at = 0; at < kSums; ++at) sum += part.sums[at];
    CUDA_CHECK(cudaFree(part.device_values));
    CUDA_CHECK(cudaFree(part.device_sums));
    CUDA_CHECK(cudaFreeHost(part.values));
    CUDA_CHECK(cudaFreeHost(part.sums));
    CUDA_CHECK(cudaEventDestroy(part.done));
    CUDA_CHECK(cudaStreamDestroy(part.stream));
  }
  if (sum != expected) {
    std::fprintf(stderr, "sum_on_all: the sum is %llu, expected %llu\n", sum, expected);
    return EXIT_FAILURE;
  }
  std::printf("sum_on_all: the sum of %u numbers by %d device%s right.\n", count, devices, devices == 1 ? "" : "s");
  return 0;
}
