// SPDX-License-Identifier: Apache-2.0
__managed__ int shared_with_host = 40;
extern "C" __global__ void double_shared() { shared_with_host *= 2; }
