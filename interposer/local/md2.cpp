// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/md2.hpp"

#include <algorithm>

namespace mpsshim::interposer {

namespace {

// "Constructed from the digits of pi" (RFC 1319, section 3.2): a permutation of 0…255.
// clang-format off
constexpr std::array<std::uint8_t, 256> kPi = {
     41,  46,  67, 201, 162, 216, 124,   1,  61,  54,  84, 161, 236, 240,   6,  19,
     98, 167,   5, 243, 192, 199, 115, 140, 152, 147,  43, 217, 188,  76, 130, 202,
     30, 155,  87,  60, 253, 212, 224,  22, 103,  66, 111,  24, 138,  23, 229,  18,
    190,  78, 196, 214, 218, 158, 222,  73, 160, 251, 245, 142, 187,  47, 238, 122,
    169, 104, 121, 145,  21, 178,   7,  63, 148, 194,  16, 137,  11,  34,  95,  33,
    128, 127,  93, 154,  90, 144,  50,  39,  53,  62, 204, 231, 191, 247, 151,   3,
    255,  25,  48, 179,  72, 165, 181, 209, 215,  94, 146,  42, 172,  86, 170, 198,
     79, 184,  56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116,   4, 241,
     69, 157, 112,  89, 100, 113, 135,  32, 134,  91, 207, 101, 230,  45, 168,   2,
     27,  96,  37, 173, 174, 176, 185, 246,  28,  70,  97, 105,  52,  64, 126,  15,
     85,  71, 163,  35, 221,  81, 175,  58, 195,  92, 249, 206, 186, 197, 234,  38,
     44,  83,  13, 110, 133,  40, 132,   9, 211, 223, 205, 244,  65, 129,  77,  82,
    106, 220,  55, 200, 108, 193, 171, 250,  36, 225, 123,   8,  12, 189, 177,  74,
    120, 136, 149, 139, 227,  99, 232, 109, 233, 203, 213, 254,  59,   0,  29,  57,
    242, 239, 183,  14, 102,  88, 208, 228, 166, 119, 114, 248, 235, 117,  75,  10,
     49,  68,  80, 180, 143, 237,  31,  26, 219, 153, 141,  51, 159,  17, 131,  20,
};
// clang-format on

constexpr std::size_t kRounds = 18;

}  // namespace

void Md2::compress(const std::uint8_t* block) {
  std::uint8_t last = checksum_[kMd2Bytes - 1];
  for (std::size_t i = 0; i < kMd2Bytes; ++i) {
    checksum_[i] = static_cast<std::uint8_t>(checksum_[i] ^ kPi[block[i] ^ last]);
    last = checksum_[i];
  }
  for (std::size_t i = 0; i < kMd2Bytes; ++i) {
    state_[kMd2Bytes + i] = block[i];
    state_[2 * kMd2Bytes + i] = static_cast<std::uint8_t>(block[i] ^ state_[i]);
  }
  std::uint8_t carried = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::uint8_t& byte : state_) {
      byte = static_cast<std::uint8_t>(byte ^ kPi[carried]);
      carried = byte;
    }
    carried = static_cast<std::uint8_t>(carried + round);
  }
}

void Md2::update(std::span<const std::uint8_t> data) {
  for (const std::uint8_t byte : data) {
    buffer_[buffered_++] = byte;
    if (buffered_ < kMd2Bytes) continue;
    compress(buffer_.data());
    buffered_ = 0;
  }
}

Md2Digest Md2::finish() {
  const auto padding = static_cast<std::uint8_t>(kMd2Bytes - buffered_);
  std::fill(buffer_.begin() + static_cast<std::ptrdiff_t>(buffered_), buffer_.end(), padding);
  compress(buffer_.data());
  const Md2Digest checksum = checksum_;
  compress(checksum.data());
  Md2Digest digest;
  std::copy_n(state_.begin(), kMd2Bytes, digest.begin());
  return digest;
}

Md2Digest hmac_md2(const Md2Digest& key, std::span<const std::uint8_t> message) {
  constexpr std::uint8_t kInner = 0x36;
  constexpr std::uint8_t kOuter = 0x5c;
  Md2Digest inner_key;
  Md2Digest outer_key;
  for (std::size_t i = 0; i < kMd2Bytes; ++i) {
    inner_key[i] = key[i] ^ kInner;
    outer_key[i] = key[i] ^ kOuter;
  }
  Md2 inner;
  inner.update(inner_key);
  inner.update(message);
  const Md2Digest inner_digest = inner.finish();
  Md2 outer;
  outer.update(outer_key);
  outer.update(inner_digest);
  return outer.finish();
}

}  // namespace mpsshim::interposer
