// SPDX-License-Identifier: Apache-2.0
// Kernels compiled by nvcc, against plain C++: what threads, blocks and grids do together, calls, and what kernels are given.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/unit/ptx/kernels_device.hpp"

namespace mpsshim::ptx::test {

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
