// SPDX-License-Identifier: Apache-2.0
// Steps that need compute capability 9.0: clusters, and dependent launches that begin before the kernel in front of them has ended.
#include <cooperative_groups.h>

#include "mix.hpp"

using namespace mpsshim::soak;

extern "C" {

// Lets its own dependents begin at once or at its end; reads nothing before the work in front of it has ended.
__global__ void step_dependent(Word* out, const Word* in, unsigned count, unsigned stride, Word salt, unsigned ticks, unsigned tells_early) {
  if (tells_early != 0) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const long long begun = clock64();
  while (clock64() - begun < ticks) {
  }
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    out[i] = mix(mix(in[i], in[(i + stride) % count]), salt + i);
  }
}

// One block a tile; each reads the tile of the next block of its cluster.
__global__ void step_cluster(Word* out, const Word* in, Word salt) {
  __shared__ Word tile[kTile];
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  const unsigned i = blockIdx.x * kTile + threadIdx.x;
  tile[threadIdx.x] = mix(in[i], salt);
  cluster.sync();
  const Word* const next = cluster.map_shared_rank(tile, (cluster.block_rank() + 1) % cluster.num_blocks());
  const Word result = mix(tile[threadIdx.x], next[kTile - 1 - threadIdx.x]);
  cluster.sync();
  out[i] = result;
}
}
