// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/integrity.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace mpsshim::interposer {

namespace {

constexpr Md2Digest kKey = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};

// For versions that end in 0 and 1 the runtime expects constants.
constexpr std::array<std::uint64_t, 2> kAnswerToZero = {0x3341181C03CB675C, 0x8ED383AA1F4CD1E8};
constexpr std::array<std::uint64_t, 2> kAnswerToOne = {0x1841181C03CB675C, 0x8ED383AA1F4CD1E8};

Md2Digest to_digest(const std::array<std::uint64_t, 2>& words) {
  Md2Digest digest;
  std::memcpy(digest.data(), words.data(), digest.size());
  return digest;
}

}  // namespace

Md2Digest integrity_answer(const IntegrityQuestion& question, std::span<const IntegrityDevice> devices) {
  if (question.version % 10 == 0) return to_digest(kAnswerToZero);
  if (question.version % 10 == 1) return to_digest(kAnswerToOne);
  std::array<std::uint8_t, sizeof(IntegrityQuestion) + proto::kMaxDevices * sizeof(IntegrityDevice)> message;
  const std::size_t device_bytes = std::min(devices.size(), std::size_t{proto::kMaxDevices}) * sizeof(IntegrityDevice);
  std::memcpy(message.data(), &question, sizeof question);
  std::memcpy(message.data() + sizeof question, devices.data(), device_bytes);
  return hmac_md2(kKey, std::span(message).first(sizeof question + device_bytes));
}

}  // namespace mpsshim::interposer
