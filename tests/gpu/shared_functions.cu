// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/shared_functions.hpp"

using namespace mpsshim::test;

template <unsigned N>
struct Words {
  Word word[N];
};

__device__ void tell(const LaunchIdentity& launch, Word which, Word seen) {
  auto* const report = reinterpret_cast<Report*>(launch.report);
  const Word place = atomicAdd(&report->count, 1ull);
  if (place < kMostFindings) report->finding[place] = {launch.lane, launch.number, which, seen};
}

__device__ void check_order(const LaunchIdentity& launch) {
  if (threadIdx.x != 0) return;
  volatile unsigned* const last = launch.last;
  if (*last != static_cast<unsigned>(launch.number) - 1) tell(launch, kOrder, *last);
  *last = static_cast<unsigned>(launch.number);
}

template <unsigned N>
__device__ void check(const LaunchIdentity& launch, const Words<N>& words) {
  for (unsigned i = threadIdx.x; i < N; i += kThreads) {
    if (words.word[i] != argument_word(launch.lane, launch.number, i)) tell(launch, i, words.word[i]);
  }
  check_order(launch);
}

extern "C" {
__global__ void words1(LaunchIdentity launch, Words<1> words) { check(launch, words); }
__global__ void words5(LaunchIdentity launch, Words<5> words) { check(launch, words); }
__global__ void words20(LaunchIdentity launch, Words<20> words) { check(launch, words); }
__global__ void words120(LaunchIdentity launch, Words<120> words) { check(launch, words); }
__global__ void three(LaunchIdentity launch, Word a, Word b, Word c) {
  if (threadIdx.x == 0) {
    const Word words[] = {a, b, c};
    for (unsigned i = 0; i < 3; ++i) {
      if (words[i] != argument_word(launch.lane, launch.number, i)) tell(launch, i, words[i]);
    }
  }
  check_order(launch);
}
__global__ void nop() {}
__global__ void write_word(unsigned* word, unsigned value) {
  __threadfence_system();
  *static_cast<volatile unsigned*>(word) = value;
}
}
