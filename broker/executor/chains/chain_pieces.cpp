// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/chains/chain_pieces.hpp"

#include <bit>
#include <limits>

namespace mpsshim::broker {

namespace {

constexpr std::size_t kPeriod = 4;
constexpr std::size_t kShortestPiece = 5;

std::uint64_t mixed_with(std::uint64_t hash, const void* function) {
  hash = (hash ^ reinterpret_cast<std::uintptr_t>(function)) * 0x9E37'79B9'7F4A'7C15U;
  return hash ^ hash >> 32;
}

bool is_flood(std::span<const void* const> functions) {
  for (std::size_t i = 0; i + kPeriod < functions.size(); ++i) {
    if (functions[i] != functions[i + kPeriod]) return false;
  }
  return true;
}

}  // namespace

std::size_t chain_length(std::size_t launches) {
  if (launches <= kLongestExactChain) return launches;
  return launches >= kMaxChain ? kMaxChain : std::bit_floor(launches);
}

std::size_t piece_length(std::size_t launches, std::span<const void* const> functions) {
  if (launches <= kLongestExactChain || functions.size() <= kLongestExactChain || is_flood(functions)) return chain_length(launches);
  std::size_t length = kLongestExactChain;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t next = kLongestExactChain; next >= kShortestPiece; --next) {
    const std::uint64_t hash = mixed_with(0, functions[next]);
    if (hash >= least) continue;
    least = hash;
    length = next;
  }
  return length;
}

std::uint64_t hash_of_functions(std::span<const void* const> functions) {
  std::uint64_t hash = 0;
  for (const void* const function : functions) hash = mixed_with(hash, function);
  return hash | 1;
}

}  // namespace mpsshim::broker
