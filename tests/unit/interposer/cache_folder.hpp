// SPDX-License-Identifier: Apache-2.0
// A compile cache of a test's own: CUDA_CACHE_PATH names a folder that goes away with the object.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "interposer/local/cache_store.hpp"
#include "interposer/local/cache_sweep.hpp"

namespace mpsshim::test {

class CacheFolder {
 public:
  CacheFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "mpsshim-cache-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    parent_ = name;
    setenv("CUDA_CACHE_PATH", name.c_str(), 1);
    unsetenv("CUDA_CACHE_DISABLE");
    unsetenv("CUDA_CACHE_MAXSIZE");
  }
  ~CacheFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(parent_, ignored);
  }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& parent() const { return parent_; }
  [[nodiscard]] std::filesystem::path path() const { return parent_ / ("mpsshim-" + std::to_string(geteuid())); }
  [[nodiscard]] std::filesystem::path file_of(const proto::ContentDigest& identity) const { return path() / interposer::cache_file_name(identity); }

  // Names of 64 characters, and what they take on the disk.
  [[nodiscard]] std::map<std::string, std::uint64_t> entries() const {
    std::map<std::string, std::uint64_t> found;
    if (!std::filesystem::exists(path())) return found;
    for (const auto& file : std::filesystem::directory_iterator(path())) {
      const std::string name = file.path().filename();
      if (name.size() == 64) found[name] = interposer::occupied_bytes(file.file_size());
    }
    return found;
  }
  [[nodiscard]] std::uint64_t total_bytes() const {
    std::uint64_t total = 0;
    for (const auto& [name, bytes] : entries()) total += bytes;
    return total;
  }
  [[nodiscard]] std::size_t unfinished() const {
    std::size_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(path()))
      count += file.path().filename().string().starts_with("unfinished-") ? 1u : 0u;
    return count;
  }

 private:
  std::filesystem::path parent_;
};

// Entry number n: its identity and its content, which no other has.
inline proto::ContentDigest identity_number(std::uint64_t n) { return {n, ~n, n * 0x9e3779b97f4a7c15u, 7}; }
inline std::string content_number(std::uint64_t n, std::size_t size_bytes) {
  std::string text(size_bytes, '\0');
  for (std::size_t i = 0; i < size_bytes; ++i) text[i] = static_cast<char>(n * 31 + i * i + i / 251);
  return text;
}

inline bool put(const proto::ContentDigest& identity, const std::string& content) {
  const auto bytes = std::as_bytes(std::span(content));
  return interposer::CacheStore(interposer::cache_place()).write(identity, bytes, proto::digest_of(bytes));
}
// Empty: a miss.
inline std::string got(const proto::ContentDigest& identity) {
  const interposer::CachedContent content = interposer::CacheStore(interposer::cache_place()).read(identity);
  if (content.bytes == nullptr) return {};
  return {reinterpret_cast<const char*>(content.bytes.get()), content.size_bytes};
}

inline std::string file_content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(content.data(), static_cast<std::streamsize>(content.size()));
}

}  // namespace mpsshim::test
