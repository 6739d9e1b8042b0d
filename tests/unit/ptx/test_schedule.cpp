// SPDX-License-Identifier: Apache-2.0
// Launches beside each other: a kernel that never ends neither starves others nor resists cancellation.
#include <chrono>
#include <thread>

#include "tests/unit/ptx/test_device.hpp"

namespace mpsshim::ptx::test {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

}  // namespace

TEST_CASE("cancellation of kernels that never end") {
  TestDevice device;
  device.load({read_text(MPSSHIM_TEST_PTX_75)});
  Buffer<int> flag(device.memory, 1);
  for (const char* name : {"forever", "forever_silent"}) {
    for (const std::uint32_t blocks : {1U, 200U}) {
      INFO(name << ", " << blocks << " blocks");
      device.cancel = false;
      LaunchOutcome outcome;
      const LaunchConfig base = device.config(name, {blocks}, {64});
      std::thread stream([&] {
        const Parameters parameters(flag);
        LaunchConfig config = base;
        config.parameters = parameters.bytes();
        outcome = device.engine.run(config, device.hooks());
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      const auto start = Clock::now();
      device.cancel = true;
      stream.join();
      CHECK(outcome.fault == Fault::cancelled);
      CHECK(milliseconds_since(start) < 500);  // Milliseconds when alone; other tests may share the processors.
    }
  }
}

TEST_CASE("kernels that never end do not starve others") {
  TestDevice device({.thread_count = 1});
  device.load({read_text(MPSSHIM_TEST_PTX_75)});
  Buffer<int> flag(device.memory, 1);
  std::vector<std::thread> streams;
  std::vector<LaunchOutcome> outcomes(3);
  const LaunchConfig endless = device.config("forever", {64}, {256});
  for (LaunchOutcome& outcome : outcomes) {
    streams.emplace_back([&] {
      const Parameters parameters(flag);
      LaunchConfig config = endless;
      config.parameters = parameters.bytes();
      outcome = device.engine.run(config, device.hooks());
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Buffer<float> a(device.memory, 10000, 1.5F);
  Buffer<float> b(device.memory, 10000, 2.0F);
  Buffer<float> c(device.memory, 10000);
  const auto start = Clock::now();
  for (int i = 0; i < 5; ++i) device.launch("vector_add", {40}, {256}, Parameters(a, b, c, 10000));
  CHECK(milliseconds_since(start) < 5000);
  CHECK(c[9999] == 3.5F);
  __atomic_store_n(&flag[0], 1, __ATOMIC_RELEASE);  // The host lets them end.
  for (std::thread& stream : streams) stream.join();
  for (const LaunchOutcome& outcome : outcomes) CHECK(outcome.fault == Fault::none);
}

TEST_CASE("many launches from many threads at once") {
  TestDevice device({.thread_count = 2});
  device.load({read_text(MPSSHIM_TEST_PTX_90)});
  Buffer<int> counters(device.memory, 4);
  Buffer<int> ones(device.memory, 1000, 1);
  std::vector<std::thread> streams;
  const LaunchConfig base = device.config("warp_sum", {8}, {128});
  std::atomic<int> failures{0};
  for (std::uint64_t s = 0; s < 4; ++s) {
    streams.emplace_back([&, s] {
      const Parameters parameters(ones, static_cast<std::uint64_t>(counters) + 4 * s, 1000);
      LaunchConfig config = base;
      config.parameters = parameters.bytes();
      for (int i = 0; i < 50; ++i) failures += device.engine.run(config, device.hooks()).fault != Fault::none ? 1 : 0;
    });
  }
  for (std::thread& stream : streams) stream.join();
  CHECK(failures == 0);
  for (int s = 0; s < 4; ++s) CHECK(counters[s] == 50 * 1000);
}

}  // namespace mpsshim::ptx::test
