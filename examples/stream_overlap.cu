// SPDX-License-Identifier: Apache-2.0
// Four streams, each copying its part of pinned memory in, working on it and copying it back; events time each stream
// and make a fifth stream wait for all four before it sums up what they left.
#include <cmath>

#include "verify.hpp"

constexpr int kStreams = 4;

__global__ void polynomial(const float* in, float* out, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float x = in[i];
    out[i] = (x + 3.0f) * x - 2.0f;
  }
}

// One block: the number of elements that are not negative, counted in shared memory.
__global__ void count_not_negative(const float* data, int count, unsigned* total) {
  __shared__ unsigned block_total;
  if (threadIdx.x == 0) block_total = 0;
  __syncthreads();
  unsigned mine = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) mine += data[i] >= 0.0f;
  atomicAdd(&block_total, mine);
  __syncthreads();
  if (threadIdx.x == 0) *total = block_total;
}

static float input(size_t i) { return static_cast<float>(i % 251) - 125.0f; }
static float output(size_t i) { return (input(i) + 3.0f) * input(i) - 2.0f; }

struct Part {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

static void enqueue(const Part& part, int index, int part_count, const float* host_in, float* host_out, float* device_in, float* device_out) {
  const size_t offset = static_cast<size_t>(index) * part_count;
  const size_t size_bytes = part_count * sizeof(float);
  CUDA_CHECK(cudaEventRecord(part.begin, part.stream));
  CUDA_CHECK(cudaMemcpyAsync(device_in + offset, host_in + offset, size_bytes, cudaMemcpyHostToDevice, part.stream));
  polynomial<<<64, 128, 0, part.stream>>>(device_in + offset, device_out + offset, part_count);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpyAsync(host_out + offset, device_out + offset, size_bytes, cudaMemcpyDeviceToHost, part.stream));
  CUDA_CHECK(cudaEventRecord(part.end, part.stream));
}

static void print_times(const Part* parts) {
  for (int i = 0; i < kStreams; ++i) {
    float milliseconds = -1;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, parts[i].begin, parts[i].end));
    if (!std::isfinite(milliseconds) || milliseconds < 0) {
      std::fprintf(stderr, "stream_overlap: stream %d took %g ms, expected a time of 0 or more\n", i, milliseconds);
      std::exit(EXIT_FAILURE);
    }
    std::printf("stream_overlap: stream %d took %.3f ms\n", i, milliseconds);
  }
}

int main(int argc, char** argv) {
  const int part_count = static_cast<int>(example::number_argument(argc, argv, "stream_overlap [floats per stream]", 1 << 16, 1, 1 << 26));
  const size_t count = static_cast<size_t>(part_count) * kStreams;
  const size_t size_bytes = count * sizeof(float);

  float *host_in = nullptr, *host_out = nullptr, *device_in = nullptr, *device_out = nullptr;
  unsigned *host_total = nullptr, *device_total = nullptr;
  CUDA_CHECK(cudaMallocHost(&host_in, size_bytes));
  CUDA_CHECK(cudaMallocHost(&host_out, size_bytes));
  CUDA_CHECK(cudaMallocHost(&host_total, sizeof *host_total));
  CUDA_CHECK(cudaMalloc(&device_in, size_bytes));
  CUDA_CHECK(cudaMalloc(&device_out, size_bytes));
  CUDA_CHECK(cudaMalloc(&device_total, sizeof *device_total));
  for (size_t i = 0; i < count; ++i) host_in[i] = input(i);

  Part parts[kStreams];
  cudaStream_t summary = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&summary, cudaStreamNonBlocking));
  for (Part& part : parts) {
    CUDA_CHECK(cudaStreamCreateWithFlags(&part.stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreate(&part.begin));
    CUDA_CHECK(cudaEventCreate(&part.end));
  }
  for (int i = 0; i < kStreams; ++i) {
    enqueue(parts[i], i, part_count, host_in, host_out, device_in, device_out);
    CUDA_CHECK(cudaStreamWaitEvent(summary, parts[i].end, 0));
  }
  count_not_negative<<<1, 256, 0, summary>>>(device_out, static_cast<int>(count), device_total);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaMemcpyAsync(host_total, device_total, sizeof *host_total, cudaMemcpyDeviceToHost, summary));
  CUDA_CHECK(cudaStreamSynchronize(summary));

  // The summary waited for every stream, so everything has arrived.
  example::require_equal("stream_overlap", host_out, count, output);
  unsigned expected_total = 0;
  for (size_t i = 0; i < count; ++i) expected_total += output(i) >= 0.0f;
  example::require_equal("stream_overlap, total", host_total, 1, [&](size_t) { return expected_total; });
  print_times(parts);

  for (Part& part : parts) {
    CUDA_CHECK(cudaEventDestroy(part.begin));
    CUDA_CHECK(cudaEventDestroy(part.end));
    CUDA_CHECK(cudaStreamDestroy(part.stream));
  }
  CUDA_CHECK(cudaStreamDestroy(summary));
  CUDA_CHECK(cudaFree(device_in));
  CUDA_CHECK(cudaFree(device_out));
  CUDA_CHECK(cudaFree(device_total));
  CUDA_CHECK(cudaFreeHost(host_in));
  CUDA_CHECK(cudaFreeHost(host_out));
  CUDA_CHECK(cudaFreeHost(host_total));
  std::printf("stream_overlap: %zu floats through %d streams right.\n", count, kStreams);
  return 0;
}
