// SPDX-License-Identifier: Apache-2.0
// Files of the compile cache: one an entry, named by its identity (a digest of all that the content depends on; 256 bits of BLAKE2b, for which
// nobody can make two of one digest, stand for what they are a digest of). The form is in docs/undocumented-tables.md.
//
// For any number of threads and processes at once, without a lock that anybody could hold for long: an entry is written beside and gets its name
// when it is whole. Whatever may be wrong with a folder, a disk or a file, reading it is a miss and writing it a refusal; a damaged entry is
// removed when it is found. No signal is raised (RLIMIT_FSIZE is looked at beforehand, nothing is mapped), and nothing waits but for the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "interposer/local/cache_folder.hpp"
#include "proto/content_hash.hpp"

namespace mpsshim::interposer {

struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

// The content of an entry in memory of malloc(), for a caller who frees it by a C function. No bytes: a miss.
struct CachedContent {
  std::unique_ptr<std::byte, FreeBytes> bytes;
  std::uint32_t size_bytes = 0;
  proto::ContentDigest digest{};  // of the bytes
};

class CacheStore {
 public:
  explicit CacheStore(CachePlace place) : place_(std::move(place)) {}

  // An entry counts as used at the minute of its last hit.
  [[nodiscard]] CachedContent read(const proto::ContentDigest& identity) const;
  // True if the entry is there now. `digest` is that of `content`, which has 1 to 2^32 - 1 bytes; larger ones than the whole cache are refused.
  // Where the entries together would become too large, those that were not used for longest go, until an eighth is free.
  [[nodiscard]] bool write(const proto::ContentDigest& identity, std::span<const std::byte> content, const proto::ContentDigest& digest) const;

 private:
  void make_room(int folder, std::uint64_t wanted_bytes) const;

  CachePlace place_;
};

// 64 digits, an entry's file name.
[[nodiscard]] std::string cache_file_name(const proto::ContentDigest& identity);

}  // namespace mpsshim::interposer
