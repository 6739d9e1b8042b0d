// SPDX-License-Identifier: Apache-2.0
// Kernels of mpsbench, compiled to a fatbin that is linked into it. Each counts, so that every launch can be checked.
__device__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Dependent launches of one thread. It waits for no memory: what is measured is launching.
extern "C" __global__ void count(unsigned* counter, unsigned step) { atomicAdd(counter, step); }

// The same by one block of several, for launches in clusters.
extern "C" __global__ void count_once(unsigned* counter, unsigned step) {
  if (blockIdx.x == 0) atomicAdd(counter, step);
}

// Holds its place on the device for so long.
extern "C" __global__ void occupy(unsigned* counter, unsigned long long duration_ns) {
  const unsigned long long start = nanoseconds();
  while (nanoseconds() - start < duration_ns) {
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *counter += 1;
}

// Ends when the host says so, or after the limit, so that no GPU is left with it.
extern "C" __global__ void endless(unsigned* counter, const volatile unsigned* stop, unsigned long long limit_ns) {
  const unsigned long long start = nanoseconds();
  while (*stop == 0 && nanoseconds() - start < limit_ns) {
  }
  *counter += 1;
}

extern "C" __global__ void wild_store(unsigned* nowhere) { *nowhere = 1; }
