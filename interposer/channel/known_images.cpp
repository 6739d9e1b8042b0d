// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/known_images.hpp"

#include <algorithm>
#include <cstring>

namespace mpsshim::interposer {

std::optional<std::uint64_t> KnownImages::find(std::span<const std::byte> content) {
  const std::lock_guard lock(mutex_);
  const auto found = copies_.find(content.data());
  if (found == copies_.end() || found->second.content.size() != content.size()) return std::nullopt;
  if (std::memcmp(found->second.content.data(), content.data(), content.size()) != 0) return std::nullopt;
  return found->second.image;
}

std::optional<std::uint64_t> KnownImages::find(std::span<const std::byte> content, const proto::ContentDigest& digest) {
  const std::lock_guard lock(mutex_);
  const auto found = images_.find({content.size(), digest});
  if (found == images_.end()) return std::nullopt;
  keep(content, found->second);
  return found->second;
}

std::optional<KnownImages::Told> KnownImages::told_by(std::uint64_t image) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(images_, [&](const auto& entry) { return entry.second == image; });
  if (found == images_.end()) return std::nullopt;
  return Told{found->first.first, found->first.second};
}

std::optional<std::uint64_t> KnownImages::find(const Told& told) {
  const std::lock_guard lock(mutex_);
  const auto found = images_.find({told.size_bytes, told.digest});
  return found != images_.end() ? std::optional(found->second) : std::nullopt;
}

void KnownImages::add(const Told& told, std::uint64_t image) {
  const std::lock_guard lock(mutex_);
  images_.emplace(std::pair(told.size_bytes, told.digest), image);
}

void KnownImages::add(std::span<const std::byte> content, const proto::ContentDigest& digest, std::uint64_t image) {
  add(Told{content.size(), digest}, image);
}

// At its second load: most images are loaded once. A program that loads ever new ones at ever new places begins anew.
void KnownImages::keep(std::span<const std::byte> content, std::uint64_t image) {
  if (content.size() > kMostBytes) return;
  if (const auto former = copies_.find(content.data()); former != copies_.end()) {
    copied_bytes_ -= former->second.content.size();
    copies_.erase(former);
  }
  if (copied_bytes_ + content.size() > kMostBytesInAll) {
    copies_.clear();
    copied_bytes_ = 0;
  }
  copies_[content.data()] = {{content.begin(), content.end()}, image};
  copied_bytes_ += content.size();
}

}  // namespace mpsshim::interposer
