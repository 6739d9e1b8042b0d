// SPDX-License-Identifier: Apache-2.0
// Where a run of launches is cut into chains. Usually the longest that it holds; a worker that is short of time cuts where the program is the same
// again, so that a chain finds a graph whose nodes have its functions already (chain.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mpsshim::broker {

inline constexpr std::size_t kMaxChain = 64;
inline constexpr std::size_t kLongestExactChain = 8;

// The longest chain with which a run of `launches` begins: any number up to 8, then 16, 32 or 64. Bursts are short and often of the same
// length, and long runs lose nothing by being cut.
[[nodiscard]] std::size_t chain_length(std::size_t launches);

inline constexpr std::size_t kPieceLook = 16;  // launches that are looked at, where there are so many

// The length of the piece with which a run of so many launches begins, of which the functions of the first ones are `functions`. Up to 8 they are one
// piece. Kernels that come again after one, two or four are a flood, for the longest chains. Others are cut into pieces of five to eight in front of
// the function whose hash is the least of those there: the same place whenever these come again, wherever the last run ended.
[[nodiscard]] std::size_t piece_length(std::size_t launches, std::span<const void* const> functions);

// Which functions, in their order; never 0.
[[nodiscard]] std::uint64_t hash_of_functions(std::span<const void* const> functions);

}  // namespace mpsshim::broker
