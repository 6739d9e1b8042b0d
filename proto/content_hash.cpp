// SPDX-License-Identifier: Apache-2.0
#include "proto/content_hash.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

namespace mpsshim::proto {

namespace {

static_assert(std::endian::native == std::endian::little, "words are read and written as they lie in memory");

constexpr std::array<std::uint64_t, 8> kInitial = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                                                   0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

constexpr std::uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

constexpr std::size_t kRounds = 12;

[[gnu::always_inline]] inline void mix(std::uint64_t& a, std::uint64_t& b, std::uint64_t& c, std::uint64_t& d, std::uint64_t x, std::uint64_t y) {
  a += b + x;
  d = std::rotr(d ^ a, 32);
  c += d;
  b = std::rotr(b ^ c, 24);
  a += b + y;
  d = std::rotr(d ^ a, 16);
  c += d;
  b = std::rotr(b ^ c, 63);
}

template <std::size_t round>
[[gnu::always_inline]] inline void mix_round(std::uint64_t (&v)[16], const std::uint64_t (&m)[16]) {
  constexpr auto& s = kOrder[round % std::size(kOrder)];
  mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
  mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
  mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
  mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
  mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
  mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
  mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
  mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
}

}  // namespace

ContentHash::ContentHash() : state_(kInitial) {
  state_[0] ^= 0x01010000 ^ sizeof(ContentDigest);  // no key, fan-out and depth 1
}

void ContentHash::compress(const std::byte* block, bool is_last) {
  std::uint64_t m[16];
  std::memcpy(m, block, sizeof m);
  std::uint64_t v[16];
  for (std::size_t i = 0; i < 8; ++i) {
    v[i] = state_[i];
    v[i + 8] = kInitial[i];
  }
  v[12] ^= total_bytes_;  // the counter's upper half stays 0: no content is that long
  if (is_last) v[14] = ~v[14];
  [&]<std::size_t... round>(std::index_sequence<round...>) { (mix_round<round>(v, m), ...); }
  (std::make_index_sequence<kRounds>());
  for (std::size_t i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
}

void ContentHash::add(std::span<const std::byte> part) {
  while (!part.empty()) {
    if (filled_ == kBlockBytes) {
      total_bytes_ += kBlockBytes;
      compress(block_.data(), false);
      filled_ = 0;
    }
    while (filled_ == 0 && part.size() > kBlockBytes) {
      total_bytes_ += kBlockBytes;
      compress(part.data(), false);
      part = part.subspan(kBlockBytes);
    }
    const std::size_t taken = std::min(part.size(), kBlockBytes - filled_);
    std::memcpy(block_.data() + filled_, part.data(), taken);
    filled_ += taken;
    part = part.subspan(taken);
  }
}

ContentDigest ContentHash::finish() {
  std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), std::byte{0});
  total_bytes_ += filled_;
  compress(block_.data(), true);
  return {state_[0], state_[1], state_[2], state_[3]};
}

ContentDigest digest_of(std::span<const std::byte> content) {
  ContentHash hash;
  hash.add(content);
  return hash.finish();
}

}  // namespace mpsshim::proto
