// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace mpsshim::broker {

// Bytes, and what keeps them where they are: a vector, or a mapping of a file whose content is sealed.
class ImageBytes {
 public:
  ImageBytes() = default;
  explicit ImageBytes(std::vector<std::byte> bytes) {
    auto kept = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    bytes_ = *kept;
    keeper_ = std::move(kept);
  }
  ImageBytes(std::span<const std::byte> bytes, std::shared_ptr<const void> keeper) : keeper_(std::move(keeper)), bytes_(bytes) {}

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  // A part of the same bytes, kept by the same.
  [[nodiscard]] ImageBytes part(std::span<const std::byte> bytes) const { return {bytes, keeper_}; }

 private:
  std::shared_ptr<const void> keeper_;
  std::span<const std::byte> bytes_;
};

}  // namespace mpsshim::broker
