// SPDX-License-Identifier: Apache-2.0
// Compiled to every kind of image that nvcc makes; the layouts are those that test_image.cpp expects.
#include <cassert>
#include <cstdio>

struct Mixed {
  char letter;
  double number;
  short three[3];
};
struct Large {
  unsigned char bytes[20001];
};

__device__ __noinline__ void say_deep(int number) { printf("deep %d\n", number); }

extern "C" {
__global__ void prints_deep(int number) { say_deep(number); }
__global__ void no_parameters() {}
__global__ void mixed_parameters(float* out, Mixed mixed, char letter, float3 vector, short s, double d) {
  *out = static_cast<float>(mixed.number) + mixed.three[2] + letter + vector.z + s + static_cast<float>(d);
}
__global__ void __launch_bounds__(128) large_parameter(int* out, Large large) {
  __shared__ int scratch[33];
  scratch[threadIdx.x % 33] = large.bytes[threadIdx.x];
  __syncthreads();
  *out = scratch[0];
}
__global__ void texts_only(int* p) {
  assert(p != nullptr);
  printf("%d\n", *p);
}
}

#ifdef WITH_HEAP
extern "C" __global__ void allocates(int** out) { *out = static_cast<int*>(malloc(4)); }
#endif

#ifdef WITH_FUNCTION_POINTERS
using Step = int (*)(int);
__device__ __noinline__ int triple(int n) { return 3 * n; }
__device__ __noinline__ int square(int n) { return n * n; }
extern "C" __global__ void hands_out(Step* out, int which) { *out = which != 0 ? triple : square; }
#endif

#ifdef WITH_FUNCTION_TABLE
using Step = int (*)(int);
__device__ __noinline__ int triple(int n) { return 3 * n; }
__device__ __noinline__ int square(int n) { return n * triple(n); }
__device__ Step const steps[] = {triple, square};
extern "C" __global__ void steps_by_table(int* out, int which) { *out = steps[which](square(*out)); }
#endif

#ifdef WITH_TABLES
extern "C" __global__ void sines(double* of) { of[threadIdx.x] = sin(of[threadIdx.x]) + sinf(static_cast<float>(of[threadIdx.x])); }
#endif

#ifdef WITH_MANAGED
__managed__ int shared_counter = 5;
__managed__ double shared_table[100];
extern "C" __global__ void counts(int n) {
  shared_counter += n;
  shared_table[n] += shared_counter;
}
#endif

#ifdef WITH_VARIABLES
__device__ int counter = 5;
__constant__ float table[4];
extern "C" __global__ void reads_variables(float* out) { *out = static_cast<float>(counter) + table[1]; }
#endif
