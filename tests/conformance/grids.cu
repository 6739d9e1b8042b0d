// SPDX-License-Identifier: Apache-2.0
// Kernels that launch kernels. Linked with the device runtime when they are loaded (test_device_launches.cpp).
extern "C" {
__global__ void add(unsigned* sum, unsigned value) { atomicAdd(sum, value); }

// A tree of grids: 2 * 32 leaves a level less.
__global__ void spread(unsigned* sum, unsigned depth) {
  if (threadIdx.x != 0) return;
  if (depth == 0) {
    add<<<2, 32>>>(sum, 1);
    return;
  }
  spread<<<1, 32>>>(sum, depth - 1);
  spread<<<1, 32>>>(sum, depth - 1);
}

// Everything else that this grid has launched is complete when the tail launch begins, whatever stream it was launched to, and when.
__global__ void look(const unsigned* sum, unsigned* seen) { *seen = *sum; }
__global__ void looks_last(unsigned* sum, unsigned* seen) {
  look<<<1, 1, 0, cudaStreamTailLaunch>>>(sum, seen);
  add<<<4, 32>>>(sum, 1);
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  add<<<4, 32, 0, stream>>>(sum, 1);
  cudaStreamDestroy(stream);
  add<<<4, 32, 0, cudaStreamFireAndForget>>>(sum, 1);
  add<<<1, 1, 0, cudaStreamTailLaunch>>>(sum, 1000);
  look<<<1, 1, 0, cudaStreamTailLaunch>>>(sum, seen + 1);
}

// In one stream, one after the other.
__global__ void moves(unsigned* to, const unsigned* from, unsigned count, unsigned* errors) {
  // Of zeroes: NVIDIA's device runtime of CUDA 13.0 fills with them whatever it is asked for (H200, driver 580).
  errors[0] = cudaMemsetAsync(to, 0, count * sizeof *to);
  errors[1] = cudaMemcpyAsync(to + 1, from, 2 * sizeof *to, cudaMemcpyDeviceToDevice);
  add<<<1, 1>>>(to + 1, 5);
  errors[2] = cudaGetLastError();
}

__global__ void facts(int* out) {
  out[0] = cudaGetDeviceCount(&out[1]);
  out[2] = cudaDeviceGetAttribute(&out[3], cudaDevAttrWarpSize, 0);
  out[4] = cudaGetLastError();
  cudaFuncAttributes attributes;
  out[5] = cudaFuncGetAttributes(&attributes, add);
  out[6] = attributes.maxThreadsPerBlock;
}

__global__ void store_at(unsigned* address) { *address = 1; }
__global__ void misleads(unsigned* address) { store_at<<<1, 1>>>(address); }
}
