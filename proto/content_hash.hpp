// SPDX-License-Identifier: Apache-2.0
// BLAKE2b with 32 bytes of digest (RFC 7693): what two module images are told apart by. The control process makes the digest of every content
// it takes; a client that has the same digest has the same content, and need not send it again. A quick hash without cryptographic strength
// would not do here: whoever can make two contents of one hash could have another client run code that it did not choose.
// About a gigabyte a second without special instructions. No state beyond the object; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mpsshim::proto {

using ContentDigest = std::array<std::uint64_t, 4>;  // the digest's bytes in order, as little-endian words

class ContentHash {
 public:
  ContentHash();
  void add(std::span<const std::byte> part);
  // Once, after the last part.
  [[nodiscard]] ContentDigest finish();

 private:
  static constexpr std::size_t kBlockBytes = 128;
  void compress(const std::byte* block, bool is_last);

  std::array<std::uint64_t, 8> state_;
  std::uint64_t total_bytes_ = 0;
  std::size_t filled_ = 0;
  std::array<std::byte, kBlockBytes> block_{};  // the last block is only known by the end: a full one waits here for what follows
};

[[nodiscard]] ContentDigest digest_of(std::span<const std::byte> content);

}  // namespace mpsshim::proto
