// SPDX-License-Identifier: Apache-2.0
// What the cases of this folder launch.
#include <cassert>
#include <cooperative_groups.h>
#include <cstdio>

// So deep that no stack holds it. Each level's array is used behind the call, so that no compiler makes a loop of it.
__device__ __noinline__ unsigned descend(unsigned depth) {
  volatile unsigned room[64];
  room[depth % 64] = depth;
  if (depth == 0) return 0;
  const unsigned deeper = descend(depth - 1);
  return deeper + room[depth % 64];
}

__device__ __noinline__ int twice(int value) { return 2 * value; }

extern "C" {
__device__ int counter = 5;
__constant__ int table[4] = {10, 20, 30, 40};

__global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

__global__ void store(unsigned* where, unsigned value) { *where = value; }
__global__ void add_to(unsigned* where, unsigned value) { atomicAdd(where, value); }
__global__ void append(unsigned* list, unsigned* count, unsigned value) { list[(*count)++] = value; }
__global__ void read_variables(int* out) {
  out[0] = counter;
  out[1] = table[threadIdx.x];
}

// Runs until somebody else stores; the next word says that it has begun.
__global__ void spin(volatile unsigned* until_not_zero) {
  until_not_zero[1] = 1;
  while (*until_not_zero == 0) {
  }
}

// Whoever asks for many blocks learns which multiprocessors they ran on.
__global__ void mark_multiprocessor(unsigned* seen) {
  unsigned number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  atomicAdd(&seen[number], 1u);
}
__global__ void __launch_bounds__(64) bounded(int* out) { *out = static_cast<int>(blockDim.x); }
__global__ void shared_memory(int* out) {
  extern __shared__ int dynamic[];
  __shared__ int fixed[32];
  dynamic[threadIdx.x] = static_cast<int>(threadIdx.x);
  fixed[threadIdx.x % 32] = 1;
  __syncthreads();
  *out = dynamic[0] + fixed[0];
}
__global__ void grid_barrier(unsigned* count, unsigned* seen) {
  atomicAdd(count, 1);
  cooperative_groups::this_grid().sync();
  seen[blockIdx.x] = *count;
}

__global__ void write_through(int* wild) { *wild = 1; }
__global__ void read_through(const int* wild, int* out) { *out = *wild; }
__global__ void add_through(int* wild) { atomicAdd(wild, 1); }
__global__ void write_shared(unsigned index) {
  __shared__ volatile int room[32];
  room[index] = 1;
}
__global__ void recurse(unsigned depth, unsigned* sum) { *sum = descend(depth); }
__global__ void call_through(void (*function)()) { function(); }
__global__ void take_address(int (**function)(int)) { *function = twice; }
__global__ void call_stored(int (**function)(int), int* result) { *result = (*function)(21); }
__global__ void odd_barrier(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads)); }
__global__ void misalign(char* p) { *reinterpret_cast<int*>(p + 1) = 1; }
__global__ void trap() { asm volatile("trap;"); }
__global__ void assert_false(int zero) { assert(zero != 0); }
__global__ void say(int number) { printf("the number is %d\n", number); }
}
