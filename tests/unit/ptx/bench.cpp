// SPDX-License-Identifier: Apache-2.0
// Prints how fast the engine is per core: lane instructions over the processor time of all its threads, which a busy
// machine does not distort. Figures only; run with the tag [bench].
#include <cstdio>
#include <ctime>

#include "tests/unit/ptx/test_device.hpp"

namespace mpsshim::ptx::test {
namespace {

double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

}  // namespace

TEST_CASE("speed of the engine", "[.bench]") {
  for (const bool baseline : {false, true}) {
    TestDevice device({.thread_count = 1, .use_baseline_isa = baseline});
    device.load({read_text(MPSSHIM_TEST_PTX_75)});
    constexpr int n = 256;
    Buffer<float> a(device.memory, 1 << 20, 1.25F);
    Buffer<float> b(device.memory, 1 << 20, 0.5F);
    Buffer<float> c(device.memory, 1 << 20);
    Buffer<double> d(device.memory, 512 * 512, 1.0);
    Buffer<double> e(device.memory, 512 * 512);
    const auto measure = [&](const char* name, Dim3 grid, Dim3 block, const Parameters& parameters) {
      device.launch(name, grid, block, parameters);
      const double start = processor_ms();
      const LaunchOutcome outcome = device.launch(name, grid, block, parameters);
      const double ms = (processor_ms() - start);
      std::printf("%-8s %-12s %8.2f ms  %6.2f G lane instructions/s\n", baseline ? "baseline" : "best", name, ms,
                  static_cast<double>(outcome.lane_instructions) / ms * 1e-6);
    };
    measure("vector_add", {4096}, {256}, Parameters(a, b, c, 1 << 20));
    measure("matmul", {n / 16, n / 16}, {16, 16}, Parameters(a, b, c, n));
    measure("matmul32", {n / 32, n / 32}, {32, 32}, Parameters(a, b, c, n));
    measure("nbody", {8}, {128}, Parameters(a, c, 1024));
    measure("jacobi", {32, 32}, {16, 16}, Parameters(d, e, 512));
    measure("warp_sum", {4096}, {256}, Parameters(a, c, 1 << 20));
    measure("histogram", {64}, {256}, Parameters(a, c, 1 << 20));
    const double start = processor_ms();
    for (int i = 0; i < 1000; ++i) device.launch("vector_add", {1}, {32}, Parameters(a, b, c, 32));
    std::printf("%-8s a launch of one warp takes %.2f us\n", baseline ? "baseline" : "best", (processor_ms() - start));
  }
}

}  // namespace mpsshim::ptx::test
