// SPDX-License-Identifier: Apache-2.0
// Variables that host and device share.
__managed__ int managed_counter = 5;
__managed__ double managed_table[300];
__device__ int device_counter = 7;
__device__ int* device_pointer;

extern "C" __global__ void count(int n) {
  atomicAdd(&managed_counter, n);
  atomicAdd(&device_counter, n);
}
extern "C" __global__ void fill_table(double value) { managed_table[threadIdx.x] += value + threadIdx.x; }
extern "C" __global__ void take_address() { device_pointer = &managed_counter; }
extern "C" __global__ void count_by_address() { *device_pointer += 100; }
