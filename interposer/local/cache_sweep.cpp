// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/cache_sweep.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/content_hash.hpp"
#include "proto/file_size_limit.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer {

namespace {

// The content of the file `total`.
struct TotalRecord {
  std::uint64_t form = 0;
  std::uint64_t bytes = 0;
  std::int64_t counted_s = 0;  // when the folder was looked through, of the clock of the day
  std::uint64_t check = 0;     // the three together: a part of a record is none
  [[nodiscard]] std::uint64_t right_check() const { return form ^ bytes ^ ~static_cast<std::uint64_t>(counted_s); }
};
static_assert(sizeof(TotalRecord) == 32);
constexpr std::uint64_t kTotalForm = 0x316c61746f74736d;  // "mstotal1"
constexpr std::int64_t kCountAgainAfter_s = 24 * 3600;
constexpr std::int64_t kUnfinishedFor_s = 3600;

// Held for a few microseconds, so somebody who keeps it is stopped: not waited for.
proto::FileDescriptor open_locked_total(int folder) {
  constexpr int kAttempts = 20;
  constexpr useconds_t kPause_us = 100;
  proto::FileDescriptor file(openat(folder, "total", O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    (void)usleep(kPause_us);
  }
  return {};
}

bool store_total(int file, TotalRecord record) {
  const proto::NoFileSizeSignal hold;
  record.check = record.right_check();
  return pwrite(file, &record, sizeof record, 0) == static_cast<ssize_t>(sizeof record);
}

struct CacheFile {
  std::array<char, 2 * sizeof(proto::ContentDigest) + 1> name{};
  std::int64_t used_s = 0;
  std::int64_t used_ns = 0;
  std::uint64_t bytes = 0;
};

bool is_entry_name(std::string_view name) {
  return name.size() == 2 * sizeof(proto::ContentDigest) && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

struct CloseFolder {
  void operator()(DIR* folder) const { (void)closedir(folder); }
};
using OpenFolder = std::unique_ptr<DIR, CloseFolder>;

// A position of its own: the caller's descriptor may be read by nobody else, but it is not rewound.
OpenFolder read_folder(int folder) {
  proto::FileDescriptor again(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!again.valid()) return {};
  OpenFolder opened(fdopendir(again.get()));
  if (opened != nullptr) (void)again.release();
  return opened;
}

bool find_status(int folder, const char* name, struct stat& status) {
  const proto::FileDescriptor file(openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  return file.valid() && fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode);
}

// All entries, and what the unfinished files of others take. Unfinished files of the dead are removed.
std::vector<CacheFile> list_entries(int folder, std::uint64_t& unfinished_bytes) {
  std::vector<CacheFile> entries;
  const OpenFolder listing = read_folder(folder);
  if (listing == nullptr) return entries;
  const std::int64_t now_s = std::time(nullptr);
  while (const dirent* found = readdir(listing.get())) {
    const std::string_view name(found->d_name);
    const bool is_unfinished = name.starts_with(kUnfinishedPrefix);
    struct stat status {};
    if ((!is_unfinished && !is_entry_name(name)) || !find_status(folder, found->d_name, status)) continue;
    const std::uint64_t bytes = occupied_bytes(static_cast<std::uint64_t>(status.st_size));
    if (!is_unfinished) {
      CacheFile entry{{}, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, bytes};
      name.copy(entry.name.data(), name.size());
      entries.push_back(entry);
    } else if (std::abs(now_s - status.st_mtim.tv_sec) < kUnfinishedFor_s || unlinkat(folder, found->d_name, 0) != 0) {
      unfinished_bytes += bytes;
    }
  }
  return entries;
}

}  // namespace

std::optional<std::uint64_t> add_to_total(int folder, std::int64_t bytes) {
  const proto::FileDescriptor file = open_locked_total(folder);
  TotalRecord record;
  if (!file.valid() || pread(file.get(), &record, sizeof record, 0) != static_cast<ssize_t>(sizeof record)) return std::nullopt;
  const std::int64_t age_s = std::time(nullptr) - record.counted_s;
  if (record.form != kTotalForm || record.check != record.right_check() || age_s < 0 || age_s > kCountAgainAfter_s) return std::nullopt;
  const bool is_less_than_nothing = bytes < 0 && record.bytes < static_cast<std::uint64_t>(-bytes);
  record.bytes = is_less_than_nothing ? 0 : record.bytes + static_cast<std::uint64_t>(bytes);
  if (!store_total(file.get(), record)) return std::nullopt;
  return record.bytes;
}

void set_total(int folder, std::uint64_t bytes) {
  const proto::FileDescriptor file = open_locked_total(folder);
  if (file.valid()) (void)store_total(file.get(), {kTotalForm, bytes, std::time(nullptr), 0});
}

Swept sweep(int folder, std::uint64_t max_bytes, std::uint64_t goal_bytes) {
  Swept swept;
  std::vector<CacheFile> entries = list_entries(folder, swept.kept_bytes);
  for (const CacheFile& entry : entries) swept.kept_bytes += entry.bytes;
  if (swept.kept_bytes <= max_bytes) return swept;
  std::sort(entries.begin(), entries.end(), [](const CacheFile& one, const CacheFile& other) {
    return one.used_s != other.used_s ? one.used_s < other.used_s : one.used_ns < other.used_ns;
  });
  for (const CacheFile& oldest : entries) {
    if (swept.kept_bytes <= goal_bytes) break;
    // What another process has removed meanwhile is gone as well.
    if (unlinkat(folder, oldest.name.data(), 0) != 0 && errno != ENOENT) continue;
    swept.kept_bytes -= oldest.bytes;
    ++swept.removed;
  }
  return swept;
}

}  // namespace mpsshim::interposer
