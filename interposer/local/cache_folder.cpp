// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/cache_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interposer/environment.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer {

namespace {

// What is no number leaves the default, as a value that is not set.
std::uint64_t cache_limit() {
  const std::string_view value = environment_value(Variable::cache_max_bytes);
  std::uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), bytes);
  if (error == std::errc::result_out_of_range) return kMaxCacheBytes;
  if (error != std::errc{} || end != value.data() + value.size()) return kDefaultCacheBytes;
  return std::min(bytes, kMaxCacheBytes);
}

// Whether it worked is seen when the last one is opened.
void make_folders(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    (void)mkdir(path.substr(0, slash).c_str(), 0700);
  }
  (void)mkdir(path.c_str(), 0700);
}

}  // namespace

CachePlace cache_place() {
  if (environment_switch(Variable::cache_disable)) return {};
  std::string parent(environment_value(Variable::cache_path));
  if (parent.empty()) {
    const std::string_view home = environment_value(Variable::home);
    if (home.empty()) return {};
    parent = std::string(home) + "/.nv";
  }
  return {parent + "/mpsshim-" + std::to_string(geteuid()), cache_limit()};
}

proto::FileDescriptor open_cache_folder(const std::string& folder, IfMissing if_missing) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  proto::FileDescriptor opened(open(folder.c_str(), kFlags));
  if (!opened.valid() && errno == ENOENT && if_missing == IfMissing::make) {
    make_folders(folder);
    opened = proto::FileDescriptor(open(folder.c_str(), kFlags));
  }
  if (!opened.valid()) {
    if (errno != ENOENT || if_missing == IfMissing::make) {
      debug_line(DebugTopic::cache, "The compile cache %s cannot be used (%s): CUDA_CACHE_PATH names another place.", folder.c_str(),
                 std::strerror(errno));
    }
    return {};
  }
  struct stat status {};
  if (fstat(opened.get(), &status) != 0 || status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    debug_line(DebugTopic::cache, "The compile cache %s is not used: it belongs to user %u with mode %o, and must be this user's alone to write.",
               folder.c_str(), status.st_uid, status.st_mode & 07777u);
    return {};
  }
  return opened;
}

}  // namespace mpsshim::interposer
