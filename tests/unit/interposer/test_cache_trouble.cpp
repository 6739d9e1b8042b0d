// SPDX-License-Identifier: Apache-2.0
// The compile cache where something is wrong: entries, folders, disks. A miss or a refusal, nothing worse.
#include <csignal>
#include <functional>
#include <iterator>

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/catch.hpp"
#include "tests/unit/interposer/cache_folder.hpp"

using namespace mpsshim;
using namespace mpsshim::test;
using namespace mpsshim::interposer;

namespace {

constexpr int kNotPossible = 77;  // exit status: what the scene needs is not permitted here

// The wait status of a child that does this; a body returns its exit status.
int in_process(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  return waitpid(child, &status, 0) == child ? status : -1;
}

// A disk of 256 KiB that this process alone sees. Who is not root needs a user namespace, in which he is still himself.
bool mounts_small_disk(const std::filesystem::path& folder) {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(user == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (user != 0) {
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user << ' ' << user << " 1";
    std::ofstream("/proc/self/gid_map") << group << ' ' << group << " 1";
  }
  if (geteuid() != user || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return mount("none", folder.c_str(), "tmpfs", 0, "size=256k") == 0;
}

// The entry's file as it is, for damage.
std::string whole_entry(const CacheFolder& cache) {
  REQUIRE(put(identity_number(1), content_number(1, 5000)));
  return file_content(cache.file_of(identity_number(1)));
}

void check_is_removed(const CacheFolder& cache) {
  const std::filesystem::path file = cache.file_of(identity_number(1));
  CHECK(got(identity_number(1)).empty());
  CHECK_FALSE(std::filesystem::exists(file));
  REQUIRE(put(identity_number(1), content_number(1, 5000)));
  CHECK(got(identity_number(1)) == content_number(1, 5000));
}

}  // namespace

TEST_CASE("a damaged entry is a miss, is removed, and can be written again") {
  const CacheFolder cache;
  const std::string whole = whole_entry(cache);
  const std::filesystem::path file = cache.file_of(identity_number(1));
  REQUIRE(whole.size() == 5112);
  for (const std::size_t length : {0u, 1u, 8u, 111u, 112u, 113u, 5111u}) {
    INFO(length << " bytes of it");
    write_file(file, std::string_view(whole).substr(0, length));
    check_is_removed(cache);
  }
  INFO("longer than it was");
  write_file(file, whole + '\0');
  check_is_removed(cache);
  INFO("zeros");
  write_file(file, std::string(whole.size(), '\0'));
  check_is_removed(cache);
}

TEST_CASE("one wrong bit anywhere in an entry is noticed") {
  const CacheFolder cache;
  const std::string whole = whole_entry(cache);
  const std::filesystem::path file = cache.file_of(identity_number(1));
  for (std::size_t at = 0; at < whole.size(); at += at < 112 ? 1 : 97) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    write_file(file, damaged);
    INFO("byte " << at);
    REQUIRE(got(identity_number(1)).empty());
    REQUIRE_FALSE(std::filesystem::exists(file));
  }
}

TEST_CASE("a whole entry under another's name is not that other one's") {
  const CacheFolder cache;
  const std::string whole = whole_entry(cache);
  write_file(cache.file_of(identity_number(2)), whole);
  CHECK(got(identity_number(2)).empty());
  CHECK_FALSE(std::filesystem::exists(cache.file_of(identity_number(2))));
  CHECK_FALSE(got(identity_number(1)).empty());
}

TEST_CASE("pipes, folders and links in an entry's place are misses that stay, and nothing waits for them") {
  const CacheFolder cache;
  const std::string whole = whole_entry(cache);
  const std::filesystem::path file = cache.file_of(identity_number(1));
  const std::filesystem::path elsewhere = cache.parent() / "elsewhere";
  write_file(elsewhere, whole);
  const auto stays = [&] {
    CHECK(got(identity_number(1)).empty());
    CHECK(std::filesystem::exists(std::filesystem::symlink_status(file)));
    (void)put(identity_number(1), content_number(1, 5000));
    std::filesystem::remove(file);
  };
  std::filesystem::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  stays();
  std::filesystem::create_directory(file);
  stays();
  std::filesystem::create_symlink(elsewhere, file);
  stays();
  std::filesystem::create_symlink(cache.parent() / "nowhere", file);
  stays();
  CHECK(file_content(elsewhere) == whole);
  CHECK_FALSE(std::filesystem::exists(cache.parent() / "nowhere"));
}

TEST_CASE("a folder that others may write, or that is a link, is not used") {
  const CacheFolder cache;
  (void)whole_entry(cache);
  for (const mode_t mode : {0770u, 0707u, 0777u}) {
    REQUIRE(chmod(cache.path().c_str(), mode) == 0);
    CHECK(got(identity_number(1)).empty());
    CHECK_FALSE(put(identity_number(2), "content"));
  }
  REQUIRE(chmod(cache.path().c_str(), 0755) == 0);  // others may read
  CHECK_FALSE(got(identity_number(1)).empty());
  std::filesystem::rename(cache.path(), cache.parent() / "moved");
  std::filesystem::create_directory_symlink(cache.parent() / "moved", cache.path());
  CHECK(got(identity_number(1)).empty());
  CHECK_FALSE(put(identity_number(2), "content"));
  CHECK_FALSE(std::filesystem::exists(cache.parent() / "moved" / cache_file_name(identity_number(2))));
}

TEST_CASE("what another user has put there is not taken") {
  if (geteuid() != 0) MPSSHIM_SKIP("needs to be root, to play another user");
  const CacheFolder cache;
  (void)whole_entry(cache);
  const std::filesystem::path file = cache.file_of(identity_number(1));
  REQUIRE(chown(file.c_str(), 65534, 65534) == 0);
  CHECK(got(identity_number(1)).empty());
  CHECK(std::filesystem::exists(file));
  REQUIRE(chown(file.c_str(), 0, 0) == 0);
  CHECK_FALSE(got(identity_number(1)).empty());
  REQUIRE(chown(cache.path().c_str(), 65534, 65534) == 0);
  CHECK(got(identity_number(1)).empty());
  CHECK_FALSE(put(identity_number(2), "content"));
}

TEST_CASE("no folder can be made: nothing is kept") {
  const CacheFolder cache;
  write_file(cache.parent() / "file", "");
  setenv("CUDA_CACHE_PATH", (cache.parent() / "file").c_str(), 1);
  CHECK_FALSE(put(identity_number(1), "content"));
  CHECK(got(identity_number(1)).empty());
  setenv("CUDA_CACHE_PATH", "/proc/nothing/of/the/kind", 1);
  CHECK_FALSE(put(identity_number(1), "content"));
  CHECK(got(identity_number(1)).empty());
}

TEST_CASE("a folder that cannot be written is read") {
  const CacheFolder cache;
  const int status = in_process([&] {
    if (!mounts_small_disk(cache.parent())) return kNotPossible;
    if (!put(identity_number(1), "content")) return 1;
    if (mount("none", cache.parent().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) != 0) return kNotPossible;
    if (put(identity_number(2), "content")) return 2;
    return got(identity_number(1)) == "content" ? 0 : 3;
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotPossible) MPSSHIM_SKIP("mounts of one's own are not permitted here");
  CHECK(status == 0);
}

TEST_CASE("a full disk: entries that have no room are refused, nothing is left of them, the others stay") {
  const CacheFolder cache;
  const int status = in_process([&] {
    if (!mounts_small_disk(cache.parent())) return kNotPossible;
    std::uint64_t kept = 0;
    while (kept < 20 && put(identity_number(kept), content_number(kept, 60'000))) ++kept;
    if (kept < 2 || kept > 4) return 1;
    for (int again = 0; again < 3; ++again) {
      if (put(identity_number(50), content_number(50, 60'000))) return 2;
    }
    if (cache.unfinished() != 0) return 3;
    for (std::uint64_t n = 0; n < kept; ++n) {
      if (got(identity_number(n)) != content_number(n, 60'000)) return 4;
    }
    // Full to the last byte, and the total gone with it.
    std::filesystem::remove(cache.path() / "total");
    std::ofstream(cache.parent() / "filler") << std::string(256 * 1024, 'x') << std::flush;
    if (put(identity_number(60), content_number(60, 5000)) || cache.unfinished() != 0) return 5;
    return got(identity_number(0)) == content_number(0, 60'000) ? 0 : 6;
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotPossible) MPSSHIM_SKIP("mounts of one's own are not permitted here");
  CHECK(status == 0);
}

TEST_CASE("the limit of a file's size raises no signal") {
  const CacheFolder cache;
  const auto limited = [&](rlim_t bytes, std::size_t content_bytes) {
    return in_process([&] {
      const rlimit limit{bytes, bytes};
      if (signal(SIGXFSZ, SIG_DFL) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &limit) != 0) return kNotPossible;
      return put(identity_number(content_bytes), content_number(1, content_bytes)) ? 1 : 0;
    });
  };
  CHECK(WEXITSTATUS(limited(10'000, 9'888)) == 1);  // with its 112 bytes of header just that
  for (const auto& [bytes, content_bytes] : {std::pair<rlim_t, std::size_t>{10'000, 9'889}, {10'000, 500'000}, {0, 10}, {16, 10}, {100, 10}}) {
    INFO("limit " << bytes << ", content " << content_bytes);
    CHECK(limited(bytes, content_bytes) == 0);
  }
  CHECK(cache.unfinished() == 0);
  CHECK(cache.entries().size() == 1);
}

TEST_CASE("no descriptor is left open") {
  const CacheFolder cache;
  const auto descriptors = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  const auto before = descriptors();
  setenv("CUDA_CACHE_MAXSIZE", "100000", 1);
  for (std::uint64_t n = 0; n < 20; ++n) {
    (void)put(identity_number(n), content_number(n, 20'000));
    (void)got(identity_number(n));
    write_file(cache.file_of(identity_number(n)), "damaged");
    (void)got(identity_number(n));
  }
  CHECK(descriptors() == before);
}
