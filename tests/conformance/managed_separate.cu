// SPDX-License-Identifier: Apache-2.0
// With -rdc: a managed variable of the other file (managed_linked.cu).
extern __managed__ int shared_with_host;
extern "C" __global__ void add_to_shared(int value) { shared_with_host += value; }
