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
// Each number that the host tells, which has written it to all of `words` before. answer[0]: the last one seen; answer[1]: words that were older.
// Ends with the number ~0.
__global__ void check_numbers(volatile unsigned* told, volatile unsigned* words, unsigned count, volatile unsigned* answer) {
  unsigned last = 0, older = 0;
  for (;;) {
    const unsigned number = *told;
    if (number == last) continue;
    __threadfence_system();
    if (number == ~0u) return;
    for (unsigned i = 0; i < count; ++i) older += words[i] != number ? 1 : 0;
    answer[1] = older;
    __threadfence_system();
    answer[0] = last = number;
  }
}
__device__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
// Numbers for the host, a pause of nanoseconds between two: first all of `words`, then `told`. Until the host says so.
__global__ void tell_numbers(volatile unsigned* stop, volatile unsigned* told, volatile unsigned* words, unsigned count, unsigned pause) {
  for (unsigned number = 1; *stop == 0; ++number) {
    for (unsigned i = 0; i < count; ++i) words[i] = number;
    __threadfence_system();
    *told = number;
    __threadfence_system();
    for (const unsigned long long end = nanoseconds() + pause; nanoseconds() < end;) {
    }
  }
}
}
