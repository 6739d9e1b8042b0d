// SPDX-License-Identifier: Apache-2.0
// A quick 64-bit hash of a stream of bytes, to find candidates for equal content. It is not a proof of anything: whoever uses it compares
// the bytes (ImageStore does). That is why it need not be cryptographic, and why no library for one is needed.
// The mixing round is that of the public xxHash64 description: four lanes of multiply and rotate, one 8-byte word each.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace mpsshim::broker::control {

class ContentHash {
 public:
  static constexpr std::size_t kBlockBytes = 32;

  // Every part but the last is a multiple of kBlockBytes long.
  void add(std::span<const std::byte> part) {
    total_bytes_ += part.size();
    while (part.size() >= kBlockBytes) {
      add_block(part.data());
      part = part.subspan(kBlockBytes);
    }
    if (part.empty()) return;
    std::array<std::byte, kBlockBytes> last{};  // the length, mixed in at the end, tells padding from content
    std::memcpy(last.data(), part.data(), part.size());
    add_block(last.data());
  }

  [[nodiscard]] std::uint64_t value() const {
    std::uint64_t hash = total_bytes_ * kPrimeA;
    for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrimeA + kPrimeB;
    hash ^= hash >> 33;
    hash *= kPrimeB;
    return hash ^ (hash >> 29);
  }

 private:
  static constexpr std::uint64_t kPrimeA = 0x9e37'79b1'85eb'ca87;
  static constexpr std::uint64_t kPrimeB = 0xc2b2'ae3d'27d4'eb4f;
  static constexpr std::uint64_t round(std::uint64_t lane, std::uint64_t word) { return std::rotl(lane + word * kPrimeB, 31) * kPrimeA; }

  void add_block(const std::byte* block) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), block, kBlockBytes);
    for (std::size_t i = 0; i < words.size(); ++i) lanes_[i] = round(lanes_[i], words[i]);
  }

  std::array<std::uint64_t, 4> lanes_{kPrimeA, kPrimeB, kPrimeA ^ kPrimeB, 0};
  std::uint64_t total_bytes_ = 0;
};

}  // namespace mpsshim::broker::control
