// SPDX-License-Identifier: Apache-2.0
// The compile cache's files: what is written is read, within the size that is allowed; the least recently used go.
#include <chrono>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/catch.hpp"
#include "tests/unit/interposer/cache_folder.hpp"

using namespace mpsshim;
using namespace mpsshim::test;
using namespace mpsshim::interposer;

namespace {

constexpr std::uint64_t kEntryBytes = 60'000;                              // content
constexpr std::uint64_t kEntryOnDisk = occupied_bytes(kEntryBytes + 112);  // with its header

void set_limit(std::uint64_t bytes) { setenv("CUDA_CACHE_MAXSIZE", std::to_string(bytes).c_str(), 1); }

void set_age(const std::filesystem::path& file, std::chrono::seconds age) {
  std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now() - age);
}

}  // namespace

TEST_CASE("what is written is read, and only under its identity") {
  const CacheFolder cache;
  for (const std::size_t size_bytes : {1u, 4096u, 200'000u}) {
    const std::string content = content_number(size_bytes, size_bytes);
    CHECK(got(identity_number(size_bytes)).empty());
    REQUIRE(put(identity_number(size_bytes), content));
    CHECK(got(identity_number(size_bytes)) == content);
    CHECK(got(identity_number(size_bytes + 1)).empty());
  }
  CHECK(cache.entries().size() == 3);
  CHECK(cache.unfinished() == 0);
}

TEST_CASE("the digest that comes with a content is the content's") {
  const CacheFolder cache;
  const std::string content = content_number(3, 1000);
  REQUIRE(put(identity_number(3), content));
  CHECK(CacheStore(cache_place()).read(identity_number(3)).digest == proto::digest_of(std::as_bytes(std::span(content))));
}

TEST_CASE("folder and entries are for their owner alone") {
  const CacheFolder cache;
  const mode_t mask = umask(0);
  REQUIRE(put(identity_number(1), "content"));
  umask(mask);
  struct stat status {};
  REQUIRE(stat(cache.path().c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0700);
  REQUIRE(stat(cache.file_of(identity_number(1)).c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
}

TEST_CASE("where the cache lies, and how large it may be") {
  const CacheFolder cache;
  const std::string own = "/mpsshim-" + std::to_string(geteuid());
  CHECK(cache_place().folder == cache.parent().string() + own);
  CHECK(cache_place().max_bytes == kDefaultCacheBytes);
  set_limit(12345);
  CHECK(cache_place().max_bytes == 12345);
  for (const char* no_number : {"", "-1", "1G", "0x100", " 7"}) {
    setenv("CUDA_CACHE_MAXSIZE", no_number, 1);
    INFO('"' << no_number << '"');
    CHECK(cache_place().max_bytes == kDefaultCacheBytes);
  }
  for (const char* too_large : {"4294967297", "99999999999999999999999"}) {
    setenv("CUDA_CACHE_MAXSIZE", too_large, 1);
    CHECK(cache_place().max_bytes == kMaxCacheBytes);
  }
  setenv("CUDA_CACHE_DISABLE", "1", 1);
  CHECK(cache_place().folder.empty());
  setenv("CUDA_CACHE_DISABLE", "0", 1);
  CHECK_FALSE(cache_place().folder.empty());
  const char* home = std::getenv("HOME");
  const std::string saved = home == nullptr ? "" : home;
  setenv("HOME", "/home/somebody", 1);
  for (const bool is_empty : {true, false}) {
    is_empty ? setenv("CUDA_CACHE_PATH", "", 1) : unsetenv("CUDA_CACHE_PATH");
    CHECK(cache_place().folder == "/home/somebody/.nv" + own);
  }
  unsetenv("HOME");
  CHECK(cache_place().folder.empty());
  setenv("HOME", saved.c_str(), 1);
}

TEST_CASE("a folder that is not there is made with the first entry, and not by reading") {
  const CacheFolder cache;
  const std::filesystem::path deep = cache.parent() / "a" / "b";
  setenv("CUDA_CACHE_PATH", deep.c_str(), 1);
  CHECK(got(identity_number(1)).empty());
  CHECK_FALSE(std::filesystem::exists(cache.parent() / "a"));
  REQUIRE(put(identity_number(1), "content"));
  CHECK(got(identity_number(1)) == "content");
}

TEST_CASE("the entries together never take more than CUDA_CACHE_MAXSIZE") {
  const CacheFolder cache;
  const std::uint64_t limit = 10 * kEntryOnDisk + 100;
  set_limit(limit);
  for (std::uint64_t n = 0; n < 50; ++n) {
    REQUIRE(put(identity_number(n), content_number(n, kEntryBytes)));
    REQUIRE(cache.total_bytes() <= limit);
    REQUIRE(got(identity_number(n)) == content_number(n, kEntryBytes));
  }
  CHECK(cache.total_bytes() >= limit / 2);
}

TEST_CASE("an entry larger than the whole cache is not kept, and costs no other its place") {
  const CacheFolder cache;
  set_limit(3 * kEntryOnDisk);
  REQUIRE(put(identity_number(1), content_number(1, kEntryBytes)));
  CHECK_FALSE(put(identity_number(2), content_number(2, 4 * kEntryBytes)));
  CHECK(got(identity_number(2)).empty());
  CHECK(got(identity_number(1)) == content_number(1, kEntryBytes));
  set_limit(0);
  CHECK_FALSE(put(identity_number(3), "content"));
  // One that has just room is kept alone.
  set_limit(kEntryOnDisk);
  CHECK(put(identity_number(4), content_number(4, kEntryBytes)));
  CHECK(cache.entries().size() == 1);
  CHECK(got(identity_number(4)) == content_number(4, kEntryBytes));
}

TEST_CASE("what was not used for longest goes first") {
  const CacheFolder cache;
  set_limit(8 * kEntryOnDisk);
  for (std::uint64_t n = 0; n < 8; ++n) {
    REQUIRE(put(identity_number(n), content_number(n, kEntryBytes)));
    set_age(cache.file_of(identity_number(n)), std::chrono::hours(100 - n));
  }
  CHECK_FALSE(got(identity_number(0)).empty());  // the oldest is used, and so the youngest
  REQUIRE(put(identity_number(8), content_number(8, kEntryBytes)));
  CHECK_FALSE(got(identity_number(0)).empty());
  CHECK(got(identity_number(1)).empty());
  CHECK(got(identity_number(2)).empty());
  CHECK_FALSE(got(identity_number(3)).empty());
  CHECK_FALSE(got(identity_number(8)).empty());
}

TEST_CASE("the folder is looked through when it may be too full, not at each entry") {
  const CacheFolder cache;
  set_limit(1'000 * kEntryOnDisk);
  REQUIRE(put(identity_number(0), "first"));  // counts, as there is no total yet
  write_file(cache.path() / "unfinished-1-1-1", "of a process that is dead");
  set_age(cache.path() / "unfinished-1-1-1", std::chrono::hours(2));
  for (std::uint64_t n = 1; n < 100; ++n) REQUIRE(put(identity_number(n), "content"));
  CHECK(cache.unfinished() == 1);  // nobody has looked
  std::filesystem::remove(cache.path() / "total");
  REQUIRE(put(identity_number(100), "content"));
  CHECK(cache.unfinished() == 0);
  write_file(cache.path() / "unfinished-1-1-2", "of a process that is at it");
  std::filesystem::remove(cache.path() / "total");
  REQUIRE(put(identity_number(101), "content"));
  CHECK(cache.unfinished() == 1);
}

TEST_CASE("whatever becomes of the total, the size holds") {
  const CacheFolder cache;
  const std::uint64_t limit = 6 * kEntryOnDisk;
  set_limit(limit);
  std::uint64_t n = 0;
  const auto fill = [&] {
    for (int i = 0; i < 12; ++i, ++n) {
      REQUIRE(put(identity_number(n), content_number(n, kEntryBytes)));
      REQUIRE(cache.total_bytes() <= limit);
    }
  };
  fill();
  const std::filesystem::path total = cache.path() / "total";
  for (const std::string& damage : {std::string(), std::string("x"), std::string(32, '\xff'), std::string(4096, '\0')}) {
    write_file(total, damage);
    fill();
  }
  std::filesystem::remove(total);
  std::filesystem::create_directory(total);
  fill();
  std::filesystem::remove(total);
  REQUIRE(mkfifo(total.c_str(), 0600) == 0);
  fill();
  std::filesystem::remove(total);
  std::filesystem::create_symlink(cache.parent() / "elsewhere", total);
  fill();
  CHECK_FALSE(std::filesystem::exists(cache.parent() / "elsewhere"));
}

TEST_CASE("a process that stopped while it held the total holds up nobody") {
  const CacheFolder cache;
  const std::uint64_t limit = 6 * kEntryOnDisk;
  set_limit(limit);
  REQUIRE(put(identity_number(0), content_number(0, kEntryBytes)));
  const proto::FileDescriptor held(open((cache.path() / "total").c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(flock(held.get(), LOCK_EX) == 0);
  const auto began = std::chrono::steady_clock::now();
  for (std::uint64_t n = 1; n < 12; ++n) {
    REQUIRE(put(identity_number(n), content_number(n, kEntryBytes)));
    REQUIRE(cache.total_bytes() <= limit);
  }
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
}

TEST_CASE("many processes at once: every hit is whole and right, and the size holds") {
  const CacheFolder cache;
  constexpr int kProcesses = 6;
  constexpr std::uint64_t kEntries = 40;
  const std::uint64_t limit = 20 * kEntryOnDisk;
  set_limit(limit);
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      int hits = 0;
      for (std::uint64_t round = 0; round < 300; ++round) {
        const std::uint64_t n = (round * 7 + static_cast<std::uint64_t>(process) * 13) * 2654435761u / 64 % kEntries;
        const std::string content = got(identity_number(n));
        if (content.empty()) {
          (void)put(identity_number(n), content_number(n, kEntryBytes));
        } else {
          if (content != content_number(n, kEntryBytes)) _exit(1);
          ++hits;
        }
        // Some entries are damaged on the way.
        if (round % 37 == 0) (void)truncate(cache.file_of(identity_number(n)).c_str(), static_cast<off_t>(round * 100));
      }
      _exit(hits > 20 ? 0 : 2);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  CHECK(cache.unfinished() == 0);
  // Those that wrote while another counted may have gone past the limit by an entry each.
  CHECK(cache.total_bytes() <= limit + kProcesses * kEntryOnDisk);
}
