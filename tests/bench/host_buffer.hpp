// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include "tests/bench/device.hpp"

namespace mpsshim::bench {

// Host memory of either kind, touched, with content that follows from the seed.
class HostBuffer {
 public:
  HostBuffer(std::size_t bytes, bool is_pinned, std::uint32_t seed) : words_(bytes / sizeof(std::uint32_t)), is_pinned_(is_pinned) {
    if (is_pinned_) {
      MPSSHIM_CHECK(cuMemHostAlloc(&memory_, bytes, 0));
    } else {
      memory_ = ::operator new(bytes);
    }
    for (std::size_t i = 0; i < words_; ++i) data()[i] = content(i, seed);
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer() {
    if (is_pinned_) {
      MPSSHIM_CHECK(cuMemFreeHost(memory_));
    } else {
      ::operator delete(memory_);
    }
  }
  [[nodiscard]] std::uint32_t* data() { return static_cast<std::uint32_t*>(memory_); }
  // Every page is looked at, not every word: a gigabyte takes long enough as it is.
  void require_content(std::uint32_t seed) {
    for (std::size_t i = 0; i < words_; i += 61) {
      if (data()[i] != content(i, seed)) fail("wrong result: word " + std::to_string(i) + " of a copied buffer is not what was sent");
    }
  }

 private:
  static std::uint32_t content(std::size_t i, std::uint32_t seed) { return static_cast<std::uint32_t>(i) * 2654435761u + seed; }
  void* memory_ = nullptr;
  std::size_t words_;
  bool is_pinned_;
};

}  // namespace mpsshim::bench
