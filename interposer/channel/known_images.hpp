// SPDX-License-Identifier: Apache-2.0
// The module images that the broker has from this session. Told by size and digest; or, without making the digest again, by their bytes at the
// place where they lay the last time: programs load the same image again and again, and comparing costs next to nothing beside BLAKE2b.
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "proto/content_hash.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer {

class KnownImages {
 public:
  // Of one image, and of all together, that are kept for comparing.
  static constexpr std::size_t kMostBytes = 256u << 10;
  static constexpr std::size_t kMostBytesInAll = 4u << 20;

  [[nodiscard]] std::optional<std::uint64_t> find(std::span<const std::byte> content);
  [[nodiscard]] std::optional<std::uint64_t> find(std::span<const std::byte> content, const proto::ContentDigest& digest);
  // What it was told by; nothing: it is none of these.
  struct Told {
    std::uint64_t size_bytes = 0;
    proto::ContentDigest digest{};
  };
  [[nodiscard]] std::optional<Told> told_by(std::uint64_t image);
  [[nodiscard]] std::optional<std::uint64_t> find(const Told& told);
  void add(const Told& told, std::uint64_t image);
  void add(std::span<const std::byte> content, const proto::ContentDigest& digest, std::uint64_t image);

 private:
  struct Copy {
    std::vector<std::byte> content;
    std::uint64_t image = 0;
  };

  void keep(std::span<const std::byte> content, std::uint64_t image) REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::pair<std::uint64_t, proto::ContentDigest>, std::uint64_t> images_ GUARDED_BY(mutex_);  // size and digest -> id
  std::map<const std::byte*, Copy> copies_ GUARDED_BY(mutex_);                                         // by where the content lay
  std::size_t copied_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace mpsshim::interposer
