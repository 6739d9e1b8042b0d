// SPDX-License-Identifier: Apache-2.0
// Prints results so that two runs of one program can be compared bit for bit. Results go to standard output, one line
// each; times and other things that differ from run to run belong on standard error.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// Ends the program with the library's number for what went wrong, unless it is zero: every CUDA library's success.
#define CHECKED(call)                                                                      \
  do {                                                                                     \
    const int status_ = static_cast<int>(call);                                            \
    if (status_ != 0) {                                                                    \
      std::fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, status_); \
      std::exit(1);                                                                        \
    }                                                                                      \
  } while (false)

// A copy of `values` on the device, or `count` zeroed elements; freed at its end.
template <typename T>
class DeviceVector {
 public:
  explicit DeviceVector(std::size_t count) : count_(count) {
    CHECKED(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
    CHECKED(cudaMemset(data_, 0, count * sizeof(T)));
  }
  explicit DeviceVector(const std::vector<T>& values) : DeviceVector(values.size()) {
    CHECKED(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceVector() { cudaFree(data_); }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;

  T* data() const { return data_; }
  std::size_t size() const { return count_; }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    CHECKED(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

// Numbers in [-1, 1) that every run repeats.
template <typename T>
std::vector<T> numbers(std::size_t count, std::uint32_t seed) {
  std::vector<T> values(count);
  std::uint32_t state = seed * 2654435761U + 1;
  for (T& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<T>(static_cast<double>(state >> 8) / 8388608.0 - 1.0);
  }
  return values;
}

// Prints the name, the number of elements and a digest (FNV-1a) of the bytes.
template <typename T>
void result(const char* name, const std::vector<T>& values) {
  std::uint64_t digest = 14695981039346656037ULL;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (std::size_t i = 0; i < values.size() * sizeof(T); ++i) digest = (digest ^ bytes[i]) * 1099511628211ULL;
  std::printf("%s %zu %016llx\n", name, values.size(), static_cast<unsigned long long>(digest));
  std::fflush(stdout);
}

// Ends the program at the first element of `got` that is further than `tolerance` from `want`.
template <typename T, typename U>
void near(const char* name, const std::vector<T>& got, const std::vector<U>& want, double tolerance) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!(std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])) <= tolerance)) {
      std::fprintf(stderr, "%s: element %zu is %.9g, not %.9g\n", name, i, static_cast<double>(got[i]), static_cast<double>(want[i]));
      std::exit(1);
    }
  }
  std::printf("%s agrees with the reference to %g\n", name, tolerance);
}
