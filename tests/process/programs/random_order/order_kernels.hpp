// SPDX-License-Identifier: Apache-2.0
// Kernels whose effects do not commute, and the same in plain C++: applied in another order, twice, or with another launch's arguments, the
// words come out differently. Three modules have functions of the same names that differ in a constant, so the wrong function shows too.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mpsshim::test {

using Words32 = std::vector<std::uint32_t>;

inline constexpr std::size_t kOrderModules = 3;
// With the 12 bytes before them 20 bytes to 4,096 of parameters, the most that a node of the executor's takes.
inline constexpr std::array<unsigned, 8> kBlobWords = {2, 64, 128, 256, 384, 512, 768, 1021};
inline constexpr std::size_t kBytesBeforeBlob = 12;
inline constexpr unsigned kMaxRotated = 256;

// The functions of a loaded module.
struct OrderKernels {
  std::uint32_t constant = 0;  // K below
  CUmodule module = nullptr;
  CUfunction affine = nullptr;   // (u64 data, u32 count, u32 a, u32 b): x = a*x + b + K, one thread a word
  CUfunction slow = nullptr;     // (u64 data, u32 count, u32 a, u32 b, u32 rounds): x = a*x + b, that many times, then + K
  CUfunction combine = nullptr;  // (u64 data, u64 source, u32 count, u32 a): x = a*x + source[i] + K
  CUfunction rotate = nullptr;   // (u64 data, u32 count, u32 a): x[i] = a * x[(i+1) % count] + K through 4*count bytes of shared memory; one block
  CUfunction bump = nullptr;     // (): state = state * 1664525 + K
  std::array<CUfunction, kBlobWords.size()> blob{};  // (u64 data, u32 count, u32 words[N]): x = 3*x + words[i] for eight of them, then + K
  CUdeviceptr state = 0;                             // the module's variable, 0 at first

  void load(std::size_t index);  // throws Failure
};

// The same on the host. `words` is what the kernel gets as data[0..count).
void model_affine(std::span<std::uint32_t> words, std::uint32_t a, std::uint32_t b, std::uint32_t k);
void model_slow(std::span<std::uint32_t> words, std::uint32_t a, std::uint32_t b, std::uint32_t rounds, std::uint32_t k);
void model_combine(std::span<std::uint32_t> words, std::span<const std::uint32_t> source, std::uint32_t a, std::uint32_t k);
void model_rotate(std::span<std::uint32_t> words, std::uint32_t a, std::uint32_t k);
void model_bump(std::uint32_t& state, std::uint32_t k);
void model_blob(std::span<std::uint32_t> words, std::span<const std::uint32_t> blob, std::uint32_t k);

}  // namespace mpsshim::test
