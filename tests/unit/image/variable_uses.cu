// SPDX-License-Identifier: Apache-2.0
// Kernels that do one thing each with a variable; test_variable_uses.cpp says what is to be found.
#include <cassert>

__device__ int counter;
__device__ int table[4] = {1, 2, 3, 4};
__device__ int wide[2];
__constant__ float weights[16];

__device__ __noinline__ int count(int by) { return atomicAdd(&counter, by); }
__device__ __noinline__ int triple(int number) { return 3 * number; }

extern "C" {
__global__ void touches_none(int* out) { out[threadIdx.x] = triple(out[threadIdx.x]); }
__global__ void asserts(int* out) { assert(out[0] != 7); }
__global__ void reads_constant(float* out) { out[0] = weights[threadIdx.x & 15]; }
__global__ void reads(int* out) { out[0] = table[out[1] & 3]; }
__global__ void counts() { atomicAdd(&counter, 1); }
__global__ void stores(int number) { table[number & 3] = number; }
__global__ void stores_in_loop(int number) {
  for (int* at = table; at != table + 4; ++at) *at = number;
}
__global__ void stores_both(int number) {
  wide[number & 1] = number;
  counter = number;
}
__global__ void calls(int* out) { out[0] = count(out[1]); }
__global__ void leaves(int** out) { *out = &counter; }
__global__ void leaves_one_of_two(int** out, int which) { *out = which != 0 ? &counter : &table[1]; }
}

#ifdef WITH_ADDRESSES_IN_VARIABLES
__device__ int* pointer = &counter;
extern "C" __global__ void stores_through(int number) { *pointer = number; }
#endif

#ifdef WITH_FUNCTION_POINTERS
using Step = int (*)(int);
__device__ Step steps[2] = {count, triple};
extern "C" __global__ void calls_by_pointer(int* out) { out[0] = steps[out[1] & 1](out[2]); }
#endif
