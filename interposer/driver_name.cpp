// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string_view>

#include <unistd.h>

#include "interposer/loader.hpp"

namespace mpsshim::interposer {

namespace {

constexpr std::string_view kDriverFile = "libcuda.so";
constexpr int kMaxLinks = 40;  // as many as the kernel follows

constexpr std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// libcuda.so, libcuda.so.1, libcuda.so.580.65.06
constexpr bool is_driver_file(std::string_view name) {
  if (!name.starts_with(kDriverFile)) return false;
  name.remove_prefix(kDriverFile.size());
  while (!name.empty()) {
    const std::size_t digits = std::min(name.find_first_not_of("0123456789", 1), name.size());
    if (name.front() != '.' || digits < 2) return false;
    name.remove_prefix(digits);
  }
  return true;
}
static_assert(is_driver_file("libcuda.so") && is_driver_file("libcuda.so.1") && is_driver_file("libcuda.so.580.65.06"));
static_assert(!is_driver_file("libcuda.so.") && !is_driver_file("libcuda.so.1.bak") && !is_driver_file("libcuda.so1") &&
              !is_driver_file("libcuda_cpu.so") && !is_driver_file("libcudart.so") && !is_driver_file("libcuda.so..1"));

// Follows the links of the last part alone: links among the folders leave the file its name.
bool is_link_to_driver(const char* file) {
  std::array<char, PATH_MAX> path;
  std::array<char, PATH_MAX> target;
  std::size_t size = std::strlen(file);
  if (size >= path.size()) return false;
  std::memcpy(path.data(), file, size + 1);
  for (int links = 0; links < kMaxLinks; ++links) {
    const ssize_t got = readlink(path.data(), target.data(), target.size());
    if (got <= 0 || static_cast<std::size_t>(got) == target.size()) return false;
    const std::string_view link(target.data(), static_cast<std::size_t>(got));
    if (is_driver_file(last_part(link))) return true;
    const std::size_t folder = link.front() == '/' ? 0 : std::string_view(path.data(), size).rfind('/') + 1;
    if (folder + link.size() >= path.size()) return false;
    std::memcpy(path.data() + folder, link.data(), link.size());
    size = folder + link.size();
    path[size] = '\0';
  }
  return false;
}

}  // namespace

bool names_driver(const char* file) noexcept {
  if (file == nullptr) return false;
  const std::string_view name(file);
  if (is_driver_file(last_part(name))) return true;
  if (name.find('/') == std::string_view::npos) return false;
  const int saved_errno = errno;
  const bool is_link = is_link_to_driver(file);
  errno = saved_errno;
  return is_link;
}

}  // namespace mpsshim::interposer
