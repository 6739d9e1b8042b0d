// SPDX-License-Identifier: Apache-2.0
// The file that a watchful client writes to (watch.hpp), as whoever started it reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/hostile/watch.hpp"

namespace mpsshim::test {

class WatchFile {
 public:
  WatchFile(const std::filesystem::path& path, double seconds) : path_(path) {
    bytes_ = watch_bytes(static_cast<std::uint64_t>(seconds * static_cast<double>(kSamplesPerSecond)) + kSamplesPerSecond);
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes_)) != 0) throw std::runtime_error("no room for samples");
    pages_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file, 0);
    ::close(file);
    if (pages_ == MAP_FAILED) throw std::runtime_error("no room for samples");
  }
  WatchFile(const WatchFile&) = delete;
  ~WatchFile() { munmap(pages_, bytes_); }
  [[nodiscard]] const WatchHeader& header() const { return *static_cast<const WatchHeader*>(pages_); }
  [[nodiscard]] std::vector<WatchSample> samples() const {
    const auto* first = reinterpret_cast<const WatchSample*>(static_cast<const char*>(pages_) + sizeof(WatchHeader));
    return {first, first + header().count};
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  const std::filesystem::path path_;
  std::size_t bytes_ = 0;
  void* pages_ = nullptr;
};

}  // namespace mpsshim::test
