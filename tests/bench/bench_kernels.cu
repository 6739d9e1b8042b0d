// SPDX-License-Identifier: Apache-2.0
// Kernels of mpsbench, compiled to a fatbin that is linked into it.
extern "C" __global__ void count(unsigned* counter, unsigned step) { *counter += step; }  // dependent launches of one thread: every one counts
extern "C" __global__ void wild_store(unsigned* nowhere) { *nowhere = 1; }
