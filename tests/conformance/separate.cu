// SPDX-License-Identifier: Apache-2.0
// With -rdc: one file calls a function and reads a variable of the other (linked.cu).
extern "C" {
extern __device__ int of_the_other;
extern __device__ int triple(int value);
__global__ void calls_the_other(int* out, int value) { *out = triple(value) + of_the_other; }
}
