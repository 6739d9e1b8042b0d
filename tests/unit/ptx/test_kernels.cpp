// SPDX-License-Identifier: Apache-2.0
// Kernels compiled by nvcc (kernels.cu), for sm_75 and sm_90, on both sets of handlers, against plain C++.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/unit/ptx/test_device.hpp"

namespace mpsshim::ptx::test {
namespace {

struct Variant {
  const char* path;
  bool use_baseline;
};
const Variant kVariants[] = {{MPSSHIM_TEST_PTX_75, false}, {MPSSHIM_TEST_PTX_90, false}, {MPSSHIM_TEST_PTX_75, true}};

class Kernels : public TestDevice {
 public:
  explicit Kernels(const Variant& variant) : TestDevice({.thread_count = 2, .use_baseline_isa = variant.use_baseline}) {
    load({read_text(variant.path)});
  }
};

template <class Body>
void on_each_variant(Body body) {
  for (const Variant& variant : kVariants) {
    INFO(variant.path << (variant.use_baseline ? " baseline" : " best"));
    Kernels device(variant);
    body(device);
  }
}

std::vector<float> random_floats(std::size_t count, float low = -4, float high = 4) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> values(low, high);
  std::vector<float> result(count);
  for (float& v : result) v = values(generator);
  return result;
}

template <class T>
Buffer<T> buffer_of(TestMemory& memory, const std::vector<T>& values) {
  Buffer<T> buffer(memory, values.size());
  std::copy(values.begin(), values.end(), buffer.data());
  return buffer;
}

}  // namespace

TEST_CASE("vector addition, with a block that is not full") {
  on_each_variant([](Kernels& device) {
    constexpr int kCount = 100003;
    auto a = buffer_of(device.memory, random_floats(kCount));
    auto b = buffer_of(device.memory, random_floats(kCount));
    Buffer<float> c(device.memory, kCount);
    const LaunchOutcome outcome = device.launch("vector_add", {(kCount + 255) / 256}, {256}, Parameters(a, b, c, kCount));
    CHECK(outcome.lane_instructions > kCount * 5ULL);
    for (int i = 0; i < kCount; ++i) REQUIRE(c[i] == a[i] + b[i]);
  });
}

TEST_CASE("tiled matrix product") {
  on_each_variant([](Kernels& device) {
    constexpr int n = 64;
    auto a = buffer_of(device.memory, random_floats(n * n));
    auto b = buffer_of(device.memory, random_floats(n * n));
    Buffer<float> c(device.memory, n * n);
    for (const char* name : {"matmul", "matmul32"}) {
      const std::uint32_t side = name == std::string("matmul") ? 16 : 32;
      device.launch(name, {n / side, n / side}, {side, side}, Parameters(a, b, c, n));
      for (int y = 0; y < n; ++y) {
        for (int x = 0; x < n; ++x) {
          float sum = 0;
          for (int k = 0; k < n; ++k) sum = std::fma(a[y * n + k], b[k * n + x], sum);
          REQUIRE(c[y * n + x] == sum);
        }
      }
    }
  });
}

TEST_CASE("shuffles, scans and transposition") {
  on_each_variant([](Kernels& device) {
    std::vector<int> values(1000);
    std::iota(values.begin(), values.end(), -200);
    auto in = buffer_of(device.memory, values);
    Buffer<int> sum(device.memory, 1);
    device.launch("warp_sum", {4}, {256}, Parameters(in, sum, 1000));
    CHECK(sum[0] == std::accumulate(values.begin(), values.end(), 0));

    Buffer<int> scanned(device.memory, 512);
    device.launch("block_scan", {1}, {512}, Parameters(in, scanned));
    int expected = 0;
    for (int i = 0; i < 512; ++i) REQUIRE(scanned[i] == (expected += values[i]));

    auto matrix = buffer_of(device.memory, random_floats(64 * 64));
    Buffer<float> turned(device.memory, 64 * 64);
    device.launch("transpose", {2, 2}, {32, 8}, Parameters(matrix, turned, 64));
    for (int i = 0; i < 64 * 64; ++i) REQUIRE(turned[i] == matrix[i % 64 * 64 + i / 64]);
  });
}

TEST_CASE("histogram with atomics in shared and global memory") {
  on_each_variant([](Kernels& device) {
    Buffer<unsigned char> in(device.memory, 50000);
    std::vector<unsigned> expected(256);
    for (std::size_t i = 0; i < in.size(); ++i) ++expected[in[i] = static_cast<unsigned char>(i * i >> 3)];
    Buffer<unsigned> bins(device.memory, 256);
    device.launch("histogram", {16}, {128}, Parameters(in, bins, 50000));
    for (int i = 0; i < 256; ++i) REQUIRE(bins[i] == expected[i]);
  });
}

TEST_CASE("n bodies") {
  on_each_variant([](Kernels& device) {
    constexpr int n = 128;
    auto p = buffer_of(device.memory, random_floats(n * 4, 0.1F, 2));
    Buffer<float> v(device.memory, n * 4);
    device.launch("nbody", {2}, {64}, Parameters(p, v, n));
    for (int i = 0; i < n; ++i) {
      double ax = 0;
      for (int j = 0; j < n; ++j) {
        const double dx = p[4 * j] - p[4 * i], dy = p[4 * j + 1] - p[4 * i + 1], dz = p[4 * j + 2] - p[4 * i + 2];
        const double r = 1 / std::sqrt(dx * dx + dy * dy + dz * dz + 0.01);
        ax += dx * static_cast<double>(p[4 * j + 3]) * r * r * r;
      }
      REQUIRE(v[4 * i] == Approx(ax).epsilon(1e-3).margin(1e-3));
    }
  });
}

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

TEST_CASE("cooperative groups: tiles with different member masks, coalesced groups") {
  on_each_variant([](Kernels& device) {
    Buffer<int> out(device.memory, 64);
    device.launch("tile_reduce", {1}, {64}, Parameters(out));
    for (int i = 0; i < 64; ++i) REQUIRE(out[i] == (i / 16 * 16) * 16 + 120);

    Buffer<int> in(device.memory, 96);
    Buffer<int> count(device.memory, 1);
    Buffer<int> position(device.memory, 96, -1);
    for (int i = 0; i < 96; ++i) in[i] = i % 3 - 1;
    device.launch("coalesced_count", {1}, {96}, Parameters(in, count, position));
    CHECK(count[0] == 32);
    std::vector<int> seen;
    for (int i = 0; i < 96; ++i) {
      if (in[i] > 0)
        seen.push_back(position[i]);
      else
        REQUIRE(position[i] == -1);
    }
    std::sort(seen.begin(), seen.end());
    for (int i = 0; i < 32; ++i) REQUIRE(seen[i] == i);
  });
}

TEST_CASE("grid barrier of a cooperative launch") {
  on_each_variant([](Kernels& device) {
    constexpr int n = 16 * 64;
    Buffer<int> data(device.memory, 2 * n);
    device.launch("grid_sync", {16}, {64}, Parameters(data, n, 6), 0, true);
    for (int i = 0; i < n; ++i) REQUIRE(data[i] == 6);
    CHECK(device.try_launch("grid_sync", {16}, {64}, Parameters(data, n, 6)).fault == Fault::launch_failed);
  });
}

TEST_CASE("locks taken by all lanes of a warp") {
  on_each_variant([](Kernels& device) {
    Buffer<int> words(device.memory, 2);
    for (const char* name : {"spin_lock", "spin_lock_simple"}) {
      INFO(name);
      words[0] = words[1] = 0;
      device.launch(name, {4}, {64}, Parameters(words, static_cast<std::uint64_t>(words) + 4));
      REQUIRE(words[1] == 256);
    }
  });
}

TEST_CASE("blocks that wait for other blocks") {
  on_each_variant([](Kernels& device) {
    Buffer<int> flags(device.memory, 40);
    Buffer<int> out(device.memory, 40);
    device.launch("block_chain", {40}, {32}, Parameters(flags, out));
    CHECK(out[39] == 40);
    Buffer<int> others(device.memory, 40);
    device.launch("reverse_chain", {40}, {32}, Parameters(others, 40));
    CHECK(others[0] == 1);
  });
}

TEST_CASE("printf and assert") {
  on_each_variant([](Kernels& device) {
    device.launch("say", {1}, {32}, Parameters(3));
    CHECK(device.printed == "thread 0:  4.50 text z 123456789a %\nthread 1:  4.50 text z 123456789a %\n");
    device.launch("claim", {1}, {1}, Parameters(6));
    device.printed.clear();
    const LaunchOutcome outcome = device.try_launch("claim", {1}, {1}, Parameters(7));
    CHECK(outcome.fault == Fault::device_assert);
    CHECK(device.printed.find("block: [0,0,0], thread: [0,0,0] Assertion `x != 7` failed.") != std::string::npos);
  });
}

TEST_CASE("calls: recursion with a structure, pointers, virtual functions") {
  on_each_variant([](Kernels& device) {
    struct Record {
      int a[10];
      double b;
    } record{{3, 4}, 5};
    Buffer<int> out(device.memory, 32);
    device.launch("call_recursive", {1}, {32}, Parameters(record, static_cast<std::uint64_t>(out)));
    const auto fib = [&](auto self, int n) -> int { return n < 2 ? n + record.a[n] : self(self, n - 1) + self(self, n - 2); };
    for (int i = 0; i < 32; ++i) REQUIRE(out[i] == fib(fib, i % 8) + 5);

    device.launch("grid_constant", {1}, {32}, Parameters(record, static_cast<std::uint64_t>(out)));
    for (int i = 0; i < 32; ++i) REQUIRE(out[i] == record.a[i % 10]);
    device.launch("call_pointers", {1}, {32}, Parameters(out));
    for (int i = 0; i < 32; ++i) REQUIRE(out[i] == ((i & 1) != 0 ? i * 3 : i + 1) + 6 + 'e');
    device.launch("call_virtual", {1}, {32}, Parameters(out));
    for (int i = 0; i < 32; ++i) REQUIRE(out[i] == ((i & 1) != 0 ? i + 1 : i * 2));
    CHECK(device.try_launch("call_wild", {1}, {1}, Parameters(std::uint64_t{12345}, out)).fault == Fault::invalid_pc);
    CHECK(device.try_launch("overflow", {1}, {32}, Parameters(out)).fault == Fault::stack_error);
  });
}

TEST_CASE("in-kernel malloc answers null without a heap") {
  on_each_variant([](Kernels& device) {
    Buffer<int> out(device.memory, 4);
    device.launch("use_heap", {1}, {4}, Parameters(out));
    CHECK(out[2] == -1);
  });
}

TEST_CASE("globals: constants, counters, managed variables") {
  on_each_variant([](Kernels& device) {
    Buffer<int> out(device.memory, 32);
    device.launch("use_globals", {1}, {32}, Parameters(out));
    for (int i = 0; i < 32; ++i) REQUIRE(out[i] == 10 * (i % 4 + 1) + 9);
    const auto counter = device.module->find_global("counter");
    REQUIRE(counter.has_value());
    CHECK(*reinterpret_cast<const int*>(device.instance->global_address(*counter)) == 6);
    CHECK(device.module->globals()[*counter].may_be_written);
    const auto table = device.module->find_global("table");
    REQUIRE(table.has_value());
    CHECK(device.module->globals()[*table].space == GlobalSpace::constant);
    const auto managed = device.module->find_global("shared_with_host");
    REQUIRE(managed.has_value());
    CHECK(device.module->globals()[*managed].is_managed);
  });
}

TEST_CASE("local arrays, dynamic shared memory, early exit, block-wide votes") {
  on_each_variant([](Kernels& device) {
    Buffer<int> in(device.memory, 64);
    Buffer<int> out(device.memory, 64);
    for (int i = 0; i < 64; ++i) in[i] = (i * 5 + 3) % 16;
    device.launch("local_array", {1}, {64}, Parameters(in, out));
    for (int i = 0; i < 64; ++i) REQUIRE(out[i] == in[in[i & 15] & 15] * i);
    device.launch("dynamic_shared", {1}, {64}, Parameters(out), 64 * 4);
    for (int i = 0; i < 64; ++i) REQUIRE(out[i] == (63 - i) * 2 + (i & 7));
    device.launch("early_exit", {1}, {64}, Parameters(out, 40));
    for (int i = 0; i < 40; ++i) REQUIRE(out[i] == 40);
    device.launch("counts", {1}, {64}, Parameters(in, out));
    const int odd = static_cast<int>(std::count_if(in.data(), in.data() + 64, [](int v) { return (v & 1) != 0; }));
    for (int i = 0; i < 64; ++i) REQUIRE(out[i] == 11000 + odd);
  });
}

TEST_CASE("a shuffle met from both sides of a branch") {
  on_each_variant([](Kernels& device) {
    Buffer<int> out(device.memory, 32);
    device.launch("both_sides", {1}, {32}, Parameters(out));
    for (int i = 0; i < 32; ++i) REQUIRE(out[i] == (i < 16 ? (i + 16) * 100 : i - 16));
  });
}

}  // namespace mpsshim::ptx::test
