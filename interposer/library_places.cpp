// SPDX-License-Identifier: Apache-2.0
#include "interposer/library_places.hpp"

#include <algorithm>
#include <array>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/segment.hpp"

namespace mpsshim::interposer {

namespace {

constexpr char kLoaderCache[] = "/etc/ld.so.cache";
constexpr std::array<std::string_view, 6> kUsualDirectories = {
    "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib"};

void add_library_path(std::vector<std::string>& candidates, std::string_view name, std::string_view rest) {
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find_first_of(":;"), rest.size());
    if (end != 0 && rest.front() == '/') candidates.push_back(std::string(rest.substr(0, end)) + '/' + std::string(name));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

// Without iostreams, which would bring locales and their constructors into every program.
std::string read_file(const char* name) {
  const proto::FileDescriptor file(open(name, O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) return {};
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t got = pread(file.get(), content.data(), content.size(), 0);
  content.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return content;
}

// The cache holds absolute paths as zero-terminated strings.
void add_loader_cache(std::vector<std::string>& candidates, std::string_view name) {
  const std::string cache = read_file(kLoaderCache);
  const std::string wanted = '/' + std::string(name) + '\0';
  for (std::size_t at = cache.find(wanted); at != std::string::npos; at = cache.find(wanted, at + 1)) {
    const std::size_t before = cache.rfind('\0', at);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    if (cache[begin] == '/') candidates.push_back(cache.substr(begin, at + wanted.size() - 1 - begin));
  }
}

}  // namespace

std::vector<std::string> library_candidates(std::string_view name, std::string_view library_path) {
  std::vector<std::string> candidates;
  add_library_path(candidates, name, library_path);
  add_loader_cache(candidates, name);
  for (const std::string_view directory : kUsualDirectories) candidates.push_back(std::string(directory) + '/' + std::string(name));
  return candidates;
}

}  // namespace mpsshim::interposer
