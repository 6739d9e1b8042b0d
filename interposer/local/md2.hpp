// SPDX-License-Identifier: Apache-2.0
// The MD2 message digest (RFC 1319) and HMAC over it (RFC 2104, block of 16 bytes). Broken as cryptography for long; here it is what the CUDA
// runtime expects of its driver (integrity.hpp), nothing is protected by it. No allocation, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mpsshim::interposer {

inline constexpr std::size_t kMd2Bytes = 16;
using Md2Digest = std::array<std::uint8_t, kMd2Bytes>;

class Md2 {
 public:
  void update(std::span<const std::uint8_t> data);
  [[nodiscard]] Md2Digest finish();  // once, at the end

 private:
  void compress(const std::uint8_t* block);

  std::array<std::uint8_t, 48> state_{};
  Md2Digest checksum_{};
  Md2Digest buffer_{};
  std::size_t buffered_ = 0;
};

// `key` is 16 bytes: exactly one block, so it is neither hashed nor padded.
[[nodiscard]] Md2Digest hmac_md2(const Md2Digest& key, std::span<const std::uint8_t> message);

}  // namespace mpsshim::interposer
