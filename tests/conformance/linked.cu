// SPDX-License-Identifier: Apache-2.0
extern "C" {
__device__ int of_the_other = 100;
__device__ int triple(int value) { return 3 * value; }
}
