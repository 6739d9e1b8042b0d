// SPDX-License-Identifier: Apache-2.0
// Kernels that set conditions of graphs.
#include <cuda_runtime.h>

extern "C" __global__ void set_from(const unsigned* word, cudaGraphConditionalHandle handle) { cudaGraphSetConditional(handle, *word); }

extern "C" __global__ void count_down(unsigned* word, cudaGraphConditionalHandle handle) {
  if (*word != 0) --*word;
  cudaGraphSetConditional(handle, *word);
}

extern "C" __global__ void add(unsigned* word, unsigned amount) { *word += amount; }
