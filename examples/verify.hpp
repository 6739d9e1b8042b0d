// SPDX-License-Identifier: Apache-2.0
// What the examples share: an error is told in words and ends the program with 1; so does the first wrong element.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#ifdef __CUDACC__
#include <cuda_runtime.h>

#define CUDA_CHECK(call)                                                                                                                      \
  do {                                                                                                                                        \
    const cudaError_t status_ = (call);                                                                                                       \
    if (status_ != cudaSuccess) {                                                                                                             \
      std::fprintf(stderr, "%s:%d: %s failed: %s (%s)\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_), cudaGetErrorName(status_)); \
      std::exit(EXIT_FAILURE);                                                                                                                \
    }                                                                                                                                         \
  } while (false)
#endif

namespace example {

// Compares `count` elements with expected(index); the first that differs is printed and ends the program.
template <typename T, typename Expected>
void require_equal(const char* program, const T* result, std::size_t count, Expected expected) {
  for (std::size_t i = 0; i < count; ++i) {
    const T wanted = expected(i);
    if (result[i] != wanted) {
      std::fprintf(stderr, "%s: element %zu is %.9g, expected %.9g\n", program, i, static_cast<double>(result[i]), static_cast<double>(wanted));
      std::exit(EXIT_FAILURE);
    }
  }
}

// The only argument of an example, a number in [low, high]; `fallback` where it is not given.
inline double number_argument(int argc, char** argv, const char* usage, double fallback, double low, double high) {
  if (argc == 1) return fallback;
  char* end = nullptr;
  errno = 0;
  const double value = argc == 2 ? std::strtod(argv[1], &end) : 0;
  const bool is_number = argc == 2 && end != argv[1] && *end == '\0' && errno == 0;
  if (!is_number || !(value >= low && value <= high)) {
    std::fprintf(stderr, "usage: %s   (a number from %.10g to %.10g)\n", usage, low, high);
    std::exit(2);
  }
  return value;
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace example
