// SPDX-License-Identifier: Apache-2.0
// What the kernels of shared_functions.cu are given, and what they find wrong. Read by the host's compiler and by nvcc.
#pragma once

namespace mpsshim::test {

using Word = unsigned long long;

// First argument of every kernel.
struct LaunchIdentity {
  Word lane;
  Word number;     // of the launch in its lane, from 1
  unsigned* last;  // device memory: the number of the lane's last launch
  Word* report;    // device memory: a Report
};

constexpr unsigned kMostFindings = 64;
constexpr Word kOrder = ~0ull;  // Finding::which: the launch did not follow the one before it

struct Finding {
  Word lane;
  Word number;
  Word which;  // word of the later arguments, or kOrder
  Word seen;
};

struct Report {
  Word count;
  Finding finding[kMostFindings];
};

// Word `which` of what a launch is given besides. What an argument of another launch is, can be told from it.
constexpr Word kMask = 0x5a5a5a5a5a5a5a5aull;
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr Word
    argument_word(Word lane, Word number, Word which) {
  return (lane << 56 | number << 16 | which) ^ kMask;
}

// Words behind the identity, as one argument or (the last) as three.
constexpr unsigned kKernels = 5;
constexpr unsigned kWords[kKernels] = {1, 5, 20, 120, 3};
constexpr const char* kNames[kKernels] = {"words1", "words5", "words20", "words120", "three"};
constexpr unsigned kMostWords = 120;
constexpr unsigned kThreads = 32;  // of each launch

}  // namespace mpsshim::test
