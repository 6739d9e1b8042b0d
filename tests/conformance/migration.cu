// SPDX-License-Identifier: Apache-2.0
// Kernels that use managed memory beside the host (test_migration.cpp, test_concurrent_managed.cpp).
extern "C" {
__global__ void add_to_all(unsigned* words, unsigned count, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) atomicAdd_system(words + i, 1u);
  }
}
__global__ void transform(unsigned* words, unsigned count, unsigned factor, unsigned addend) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) words[i] = words[i] * factor + addend;
}
// Until the host says so.
__global__ void count_until_told(volatile unsigned* told, volatile unsigned* count) {
  while (*told == 0) *count = *count + 1;
}
// To the words with even numbers; how often, is behind `told`.
__global__ void add_until_told(volatile unsigned* told, volatile unsigned* words, unsigned count) {
  unsigned rounds = 0;
  for (; *told == 0; ++rounds) {
    for (unsigned i = 0; i < count; i += 2) words[i] = words[i] + 1;
  }
  told[1] = rounds;
}
}
