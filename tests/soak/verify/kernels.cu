// SPDX-License-Identifier: Apache-2.0
// Kernels of the verifying soak. A step reads `count` words of one array and writes those of another, words of other blocks among its sources: a
// step that begins before the one in front of it has ended shows. steps.cpp does the same on the host.
#include <cooperative_groups.h>
#include <cstdio>

#include "mix.hpp"

using namespace mpsshim::soak;

namespace {

// Takes time without changing anything.
__device__ void spin_for(unsigned ticks) {
  if (ticks == 0) return;
  const long long begun = clock64();
  while (clock64() - begun < ticks) {
  }
}

__device__ unsigned first_word() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ unsigned all_threads() { return gridDim.x * blockDim.x; }

template <unsigned kSalts>
__device__ void step_wide(const WideArguments<kSalts>& a) {
  for (unsigned i = first_word(); i < a.count; i += all_threads()) {
    a.out[i] = mix(mix(a.in[i], a.in[(i + a.stride) % a.count]), a.salts[i % kSalts] + i);
  }
}

// Every thread fills an array of its own, lets others run, and looks at all of it: what is wrong is counted into the result. Unrolled, the smallest
// array would be registers.
template <unsigned kBytes>
__device__ void step_local(Word* out, const Word* in, unsigned count, Word salt) {
  constexpr unsigned kWords = kBytes / sizeof(Word);
  volatile Word room[kWords];
  for (unsigned base = blockIdx.x * kTile; base < count; base += gridDim.x * kTile) {
    const unsigned i = base + threadIdx.x;
    const Word value = in[i];
#pragma unroll 1
    for (unsigned j = 0; j < kWords; ++j) room[j] = local_entry(value, salt, j);
    __syncthreads();
    Word wrong = 0;
#pragma unroll 1
    for (unsigned j = 0; j < kWords; ++j) wrong += room[j] != local_entry(value, salt, j) ? 1 : 0;
    __syncthreads();
    Word result = mix(value, wrong);
#pragma unroll 1
    for (unsigned k = 0; k < kLocalSamples; ++k) result = mix(result, room[local_sample(value, salt, k, kWords)]);
    out[i] = result;
  }
}

}  // namespace

extern "C" {

__global__ void step_short(Word* out, const Word* in, unsigned count, unsigned stride, Word salt, unsigned ticks) {
  spin_for(ticks);
  for (unsigned i = first_word(); i < count; i += all_threads()) out[i] = mix(mix(in[i], in[(i + stride) % count]), salt + i);
}

__global__ void step_few(WideArguments<kFewSalts> a) { step_wide(a); }
__global__ void step_many(WideArguments<kManySalts> a) { step_wide(a); }
__global__ void step_more(WideArguments<kMoreSalts> a) { step_wide(a); }
__global__ void step_much(WideArguments<kMuchSalts> a) { step_wide(a); }
__global__ void step_most(WideArguments<kMostSalts> a) { step_wide(a); }

__global__ void step_tile(Word* out, const Word* in, unsigned count, Word salt) {
  __shared__ Word tile[kTile];
  for (unsigned base = blockIdx.x * kTile; base < count; base += gridDim.x * kTile) {
    tile[threadIdx.x] = mix(in[base + threadIdx.x], salt);
    __syncthreads();
    out[base + threadIdx.x] = mix(tile[threadIdx.x], tile[kTile - 1 - threadIdx.x]);
    __syncthreads();
  }
}

__global__ void step_dynamic(Word* out, const Word* in, unsigned count, Word salt, unsigned words) {
  extern __shared__ Word room[];
  for (unsigned base = blockIdx.x * kTile; base < count; base += gridDim.x * kTile) {
    for (unsigned j = threadIdx.x; j < words; j += kTile) room[j] = mix(in[base + j % kTile], salt + j);
    __syncthreads();
    Word result = in[base + threadIdx.x];
    for (unsigned k = 0; k < kSharedSamples; ++k) result = mix(result, room[shared_sample(salt, threadIdx.x, k, words)]);
    __syncthreads();
    out[base + threadIdx.x] = result;
  }
}

__global__ void step_local_64(Word* out, const Word* in, unsigned count, Word salt) { step_local<64>(out, in, count, salt); }
__global__ void step_local_512(Word* out, const Word* in, unsigned count, Word salt) { step_local<512>(out, in, count, salt); }
__global__ void step_local_4096(Word* out, const Word* in, unsigned count, Word salt) { step_local<4096>(out, in, count, salt); }
__global__ void step_local_32768(Word* out, const Word* in, unsigned count, Word salt) { step_local<32768>(out, in, count, salt); }

__global__ void step_warp(Word* out, const Word* in, unsigned count, Word salt) {
  for (unsigned base = blockIdx.x * kTile; base < count; base += gridDim.x * kTile) {
    Word value = mix(in[base + threadIdx.x], salt);
    for (unsigned distance = 16; distance > 0; distance /= 2) value = mix(value, __shfl_xor_sync(~0u, value, distance));
    out[base + threadIdx.x] = value;
  }
}

// A sum of every tile, in floating point: all of them are integers small enough to be exact in whatever order.
__global__ void step_float(Word* out, const Word* in, unsigned count, Word salt) {
  __shared__ float sums[kTile];
  for (unsigned base = blockIdx.x * kTile; base < count; base += gridDim.x * kTile) {
    const Word value = in[base + threadIdx.x];
    sums[threadIdx.x] = static_cast<float>(value & 0xfff);
    __syncthreads();
    for (unsigned half = kTile / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
      __syncthreads();
    }
    out[base + threadIdx.x] = mix(mix(value, static_cast<Word>(sums[0])), salt);
    __syncthreads();
  }
}

// Both halves of a reduction of everything: the sum is 0 before the first.
__global__ void add_all(const Word* in, unsigned count, Word salt, Sum* sum) {
  Sum mine = 0;
  for (unsigned i = first_word(); i < count; i += all_threads()) mine += mix(in[i], salt + i);
  atomicAdd(sum, mine);
}
__global__ void step_sum(Word* out, const Word* in, unsigned count, const Sum* sum) {
  const Sum all = *sum;
  for (unsigned i = first_word(); i < count; i += all_threads()) {
    out[i] = mix(mix(in[i], static_cast<Word>(all)), static_cast<Word>(all >> 32) + i);
  }
}

__global__ void step_cooperative(Word* out, const Word* in, Word* scratch, unsigned count, unsigned stride, Word salt) {
  for (unsigned i = first_word(); i < count; i += all_threads()) scratch[i] = mix(in[i], salt);
  cooperative_groups::this_grid().sync();
  for (unsigned i = first_word(); i < count; i += all_threads()) out[i] = mix(scratch[i], scratch[(i + stride) % count]);
}

// A node of a dependency graph: of three sources, each turned by as many words.
__global__ void join(Word* out, const Word* a, const Word* b, const Word* c, unsigned count, Word salt, unsigned ticks) {
  spin_for(ticks);
  for (unsigned i = first_word(); i < count; i += all_threads()) {
    out[i] = mix(mix(mix(salt + i, a[i]), b[(i + 1) % count]), c[(i + 2) % count]);
  }
}

__global__ void fill(Word* data, Sum count, Word seed) {
  for (Sum i = first_word(); i < count; i += all_threads()) data[i] = pattern(seed, static_cast<Word>(i));
}
__global__ void digest(const Word* data, Sum count, Sum* sum) {
  Sum mine = 0;
  for (Sum i = first_word(); i < count; i += all_threads()) mine += mix(data[i], static_cast<Word>(i));
  atomicAdd(sum, mine);
}
__global__ void poke(Sum* where, Sum value, unsigned ticks) {
  spin_for(ticks);
  *where = value;
}
__global__ void say(unsigned nonce, unsigned value) { printf("soak %u says %u\n", nonce, value); }

// Makes small integers of products of small integers, so that these can be multiplied again and every sum is exact: one of four codes for each.
__global__ void squash_halves(unsigned short* out, const unsigned short* in, unsigned count, SquashCodes codes) {
  for (unsigned i = first_word(); i < count; i += all_threads()) out[i] = static_cast<unsigned short>(codes.code[squash_choice(in[i], i)]);
}
__global__ void squash_floats(Word* out, const Word* in, unsigned count, SquashCodes codes) {
  for (unsigned i = first_word(); i < count; i += all_threads()) out[i] = codes.code[squash_choice(in[i], i)];
}
}
