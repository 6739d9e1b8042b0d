// SPDX-License-Identifier: Apache-2.0
// A module with variables. Compiled several times, MPSSHIM_SOAK_VARIANT being its number.
#include "mix.hpp"

using namespace mpsshim::soak;

extern "C" {

__device__ Word counter = 1000 + MPSSHIM_SOAK_VARIANT;
__device__ Word table[256];
__constant__ Word constants[64];

__global__ void step_variables(Word* out, const Word* in, unsigned count, Word* seen) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    out[i] = mix(mix(in[i], table[i % 256]), constants[i % 64] + MPSSHIM_SOAK_VARIANT);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *seen = ++counter;
}
}
