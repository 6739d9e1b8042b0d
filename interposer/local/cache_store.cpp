// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/cache_store.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "interposer/local/cache_sweep.hpp"
#include "interposer/log.hpp"
#include "proto/file_size_limit.hpp"

namespace mpsshim::interposer {

namespace {

// What stands before an entry's content.
struct EntryHeader {
  std::array<char, 8> form;
  proto::ContentDigest identity;
  std::uint64_t content_bytes;
  proto::ContentDigest content_digest;
  proto::ContentDigest header_digest;  // of the fields above
};
static_assert(sizeof(EntryHeader) == 112);
constexpr std::array<char, 8> kEntryForm = {'m', 'p', 's', 's', 'h', 'i', 'm', '1'};

constexpr std::uint64_t kMaxContentBytes = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kTouchAfter_s = 60;

proto::ContentDigest digest_of_fields(const EntryHeader& header) {
  return proto::digest_of(std::as_bytes(std::span(&header, 1)).first(offsetof(EntryHeader, header_digest)));
}

bool read_whole(int file, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = ::read(file, into.data(), into.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    into = into.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

bool write_whole(int file, std::span<const std::byte> from) {
  const proto::NoFileSizeSignal hold;
  while (!from.empty()) {
    const ssize_t put = ::write(file, from.data(), from.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    from = from.subspan(static_cast<std::size_t>(put));
  }
  return true;
}

enum class Found : std::uint8_t { whole, damaged, unreadable };

// The file's size and header decide how much is read; the content's digest whether it is given to anybody.
Found read_entry(int file, std::uint64_t file_bytes, const proto::ContentDigest& identity, CachedContent& content) {
  EntryHeader header;
  if (file_bytes <= sizeof header || file_bytes - sizeof header > kMaxContentBytes) return Found::damaged;
  if (!read_whole(file, std::as_writable_bytes(std::span(&header, 1)))) return Found::damaged;
  if (header.form != kEntryForm || header.identity != identity || header.content_bytes != file_bytes - sizeof header ||
      header.header_digest != digest_of_fields(header)) {
    return Found::damaged;
  }
  content.size_bytes = static_cast<std::uint32_t>(header.content_bytes);
  content.bytes.reset(static_cast<std::byte*>(std::malloc(content.size_bytes)));
  if (content.bytes == nullptr) return Found::unreadable;
  const std::span<std::byte> bytes(content.bytes.get(), content.size_bytes);
  if (!read_whole(file, bytes)) return Found::damaged;
  content.digest = proto::digest_of(bytes);
  return content.digest == header.content_digest ? Found::whole : Found::damaged;
}

// Eviction goes by the time of the last change, which readers move on. Writing it at every hit would cost more than the reading.
void note_use(int file, const struct stat& status) {
  const std::int64_t age_s = std::time(nullptr) - status.st_mtim.tv_sec;
  if (age_s < 0 || age_s >= kTouchAfter_s) (void)futimens(file, nullptr);
}

// A write beyond this limit raises SIGXFSZ, which ends a program that does not expect it.
bool is_within_file_limit(std::uint64_t size_bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || size_bytes <= limit.rlim_cur);
}

// A file of this process alone; invalid where there can be none. The name is unique on this machine; O_EXCL is for folders of several machines.
proto::FileDescriptor open_unfinished(int folder, std::string& name) {
  static std::atomic<unsigned> count{0};
  for (int attempt = 0; attempt < 3; ++attempt) {
    timespec now{};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    name = kUnfinishedPrefix + std::to_string(getpid()) + '-' + std::to_string(count.fetch_add(1, std::memory_order_relaxed)) + '-' +
           std::to_string(now.tv_nsec);
    proto::FileDescriptor file(openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file.valid() || errno != EEXIST) return file;
  }
  return {};
}

// False leaves nothing behind. Not flushed to the disk: what a power failure makes of it is found by its digests.
bool write_entry(int folder, const std::string& name, const EntryHeader& header, std::span<const std::byte> content) {
  std::string unfinished;
  proto::FileDescriptor file = open_unfinished(folder, unfinished);
  if (!file.valid()) return false;
  const bool is_written = write_whole(file.get(), std::as_bytes(std::span(&header, 1))) && write_whole(file.get(), content);
  file.reset();
  if (is_written && renameat(folder, unfinished.c_str(), folder, name.c_str()) == 0) return true;
  const int error = errno;
  (void)unlinkat(folder, unfinished.c_str(), 0);
  errno = error;
  return false;
}

}  // namespace

std::string cache_file_name(const proto::ContentDigest& identity) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  name.reserve(2 * sizeof identity);
  for (const std::byte byte : std::as_bytes(std::span(identity))) {
    name += kDigits[std::to_integer<unsigned>(byte) >> 4];
    name += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return name;
}

CachedContent CacheStore::read(const proto::ContentDigest& identity) const {
  const proto::FileDescriptor folder = open_cache_folder(place_.folder, IfMissing::leave);
  if (!folder.valid()) return {};
  const std::string name = cache_file_name(identity);
  // Without waiting: what has this name may be a pipe. Such a thing, and what another user has put there, is left alone.
  const proto::FileDescriptor file(openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid()) {
    debug_line(DebugTopic::cache, "The compile cache %s has no entry %s.", place_.folder.c_str(), name.c_str());
    return {};
  }
  CachedContent content;
  const Found found = read_entry(file.get(), static_cast<std::uint64_t>(status.st_size), identity, content);
  if (found == Found::whole) {
    note_use(file.get(), status);
    debug_line(DebugTopic::cache, "The compile cache %s gives entry %s, %u bytes.", place_.folder.c_str(), name.c_str(), content.size_bytes);
    return content;
  }
  if (found == Found::damaged) (void)unlinkat(folder.get(), name.c_str(), 0);
  debug_line(DebugTopic::cache, "The compile cache %s has entry %s %s.", place_.folder.c_str(), name.c_str(),
             found == Found::damaged ? "damaged; it is removed" : "for which there is no memory");
  return {};
}

bool CacheStore::write(const proto::ContentDigest& identity, std::span<const std::byte> content, const proto::ContentDigest& digest) const {
  const std::uint64_t file_bytes = sizeof(EntryHeader) + content.size();
  const std::uint64_t occupied = occupied_bytes(file_bytes);
  if (content.empty() || content.size() > kMaxContentBytes || occupied > place_.max_bytes || !is_within_file_limit(file_bytes)) return false;
  const proto::FileDescriptor folder = open_cache_folder(place_.folder, IfMissing::make);
  if (!folder.valid()) return false;
  const std::string name = cache_file_name(identity);
  if (faccessat(folder.get(), name.c_str(), F_OK, 0) == 0) return true;  // another process was quicker
  EntryHeader header{kEntryForm, identity, content.size(), digest, {}};
  header.header_digest = digest_of_fields(header);
  make_room(folder.get(), occupied);
  const bool is_written = write_entry(folder.get(), name, header, content);
  const int error = errno;
  if (!is_written) (void)add_to_total(folder.get(), -static_cast<std::int64_t>(occupied));
  debug_line(DebugTopic::cache, "The compile cache %s %s entry %s, %zu bytes%s%s.", place_.folder.c_str(), is_written ? "takes" : "cannot take",
             name.c_str(), content.size(), is_written ? "" : ": ", is_written ? "" : std::strerror(error));
  return is_written;
}

// Counted before it is written: many processes that write at once see each other.
void CacheStore::make_room(int folder, std::uint64_t wanted_bytes) const {
  if (const auto total = add_to_total(folder, static_cast<std::int64_t>(wanted_bytes)); total && *total <= place_.max_bytes) return;
  const std::uint64_t goal = std::max(place_.max_bytes - place_.max_bytes / 8, wanted_bytes);
  const Swept swept = sweep(folder, place_.max_bytes - wanted_bytes, goal - wanted_bytes);
  set_total(folder, swept.kept_bytes + wanted_bytes);
  debug_line(DebugTopic::cache, "The compile cache %s was counted: %llu entries evicted, %llu bytes kept.", place_.folder.c_str(),
             static_cast<unsigned long long>(swept.removed), static_cast<unsigned long long>(swept.kept_bytes));
}

}  // namespace mpsshim::interposer
