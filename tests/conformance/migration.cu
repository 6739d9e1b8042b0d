// SPDX-License-Identifier: Apache-2.0
// Kernels that use managed memory beside the host (test_migration.cpp).
extern "C" {
__global__ void add_to_all(unsigned* words, unsigned count, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) atomicAdd_system(words + i, 1u);
  }
}
__global__ void transform(unsigned* words, unsigned count, unsigned factor, unsigned addend) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) words[i] = words[i] * factor + addend;
}
}
