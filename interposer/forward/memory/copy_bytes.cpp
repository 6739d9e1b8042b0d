// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/copy_bytes.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mpsshim::interposer::forward {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kVectorBytes = 32;
constexpr std::size_t kStepBytes = 4 * kVectorBytes;  // two cache lines

// `to` is at a multiple of kVectorBytes, `size_bytes` a multiple of kStepBytes.
__attribute__((target("avx2"))) void stream_steps(std::byte* to, const std::byte* from, std::size_t size_bytes) {
  for (std::size_t at = 0; at < size_bytes; at += kStepBytes) {
    const auto* source = reinterpret_cast<const __m256i*>(from + at);
    auto* destination = reinterpret_cast<__m256i*>(to + at);
    const __m256i first = _mm256_loadu_si256(source);
    const __m256i second = _mm256_loadu_si256(source + 1);
    const __m256i third = _mm256_loadu_si256(source + 2);
    const __m256i fourth = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(destination, first);
    _mm256_stream_si256(destination + 1, second);
    _mm256_stream_si256(destination + 2, third);
    _mm256_stream_si256(destination + 3, fourth);
  }
  _mm_sfence();  // such stores are ordered with nothing else: whoever is told that the copy is done must see them
}

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t size_bytes) {
  const std::size_t head = (kVectorBytes - reinterpret_cast<std::uintptr_t>(to) % kVectorBytes) % kVectorBytes;
  if (size_bytes < head + kStepBytes || __builtin_cpu_supports("avx2") == 0) {
    std::memcpy(to, from, size_bytes);
    return;
  }
  std::memcpy(to, from, head);
  const std::size_t streamed = (size_bytes - head) / kStepBytes * kStepBytes;
  stream_steps(to + head, from + head, streamed);
  std::memcpy(to + head + streamed, from + head + streamed, size_bytes - head - streamed);
}

}  // namespace

#endif

void copy_bytes(std::byte* to, const std::byte* from, std::size_t size_bytes, Caching caching) {
#if defined(__x86_64__)
  if (caching == Caching::past) return copy_past_caches(to, from, size_bytes);
#endif
  static_cast<void>(caching);
  std::memcpy(to, from, size_bytes);
}

}  // namespace mpsshim::interposer::forward
