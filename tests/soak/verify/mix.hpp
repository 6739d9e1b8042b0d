// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the verifying soak, the same in kernels and on the host. What a step makes of a word depends on all steps before it and on
// their order: for every value, mix() is one to one in its first argument, so a difference never goes away again.
#pragma once

#ifdef __CUDACC__
#define MPSSHIM_SOAK_BOTH __host__ __device__
#else
#define MPSSHIM_SOAK_BOTH
#endif

namespace mpsshim::soak {

using Word = unsigned;
using Sum = unsigned long long;

constexpr unsigned kTile = 128;  // threads of a block that works on a tile of as many words; lengths are multiples of it

MPSSHIM_SOAK_BOTH inline Word mix(Word state, Word value) {
  state ^= value * 0x9E3779B1u;
  state = (state << 13) | (state >> 19);
  state = state * 5u + 0xE6546B64u;
  state ^= state >> 15;
  return state * 0x85EBCA6Bu;
}

// A word of a pattern that is told apart from the same pattern elsewhere.
MPSSHIM_SOAK_BOTH inline Word pattern(Word seed, Word index) { return seed + index * 2654435761u; }

// The j-th entry of a local array of `words` entries, and which entries make the result.
MPSSHIM_SOAK_BOTH inline Word local_entry(Word value, Word salt, unsigned j) { return mix(value ^ salt, j); }
constexpr unsigned kLocalSamples = 16;
MPSSHIM_SOAK_BOTH inline unsigned local_sample(Word value, Word salt, unsigned k, unsigned words) { return mix(value + k, salt) % words; }

// Words of dynamic shared memory: which ones make the result.
constexpr unsigned kSharedSamples = 4;
MPSSHIM_SOAK_BOTH inline unsigned shared_sample(Word salt, unsigned thread, unsigned k, unsigned words) {
  return (thread * 37u + k * 101u + salt % 1021u) % words;
}

// Arguments of a kernel, more than a KiB of them for the larger ones.
template <unsigned kSalts>
struct WideArguments {
  Word* out;
  const Word* in;
  unsigned count;
  unsigned stride;
  Word salts[kSalts];
};
constexpr unsigned kFewSalts = 20;     // 104 bytes
constexpr unsigned kManySalts = 280;   // 1,144 bytes
constexpr unsigned kMoreSalts = 400;   // 1,624 bytes
constexpr unsigned kMuchSalts = 800;   // 3,224 bytes
constexpr unsigned kMostSalts = 1000;  // 4,024 bytes; 4,096 is what every GPU takes

// Of an element's bits, one of four small integers, as bits again.
struct SquashCodes {
  Word code[4];
};
MPSSHIM_SOAK_BOTH inline unsigned squash_choice(Word bits, unsigned index) { return mix(bits, index) >> 30; }

}  // namespace mpsshim::soak
