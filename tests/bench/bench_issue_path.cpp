// SPDX-License-Identifier: Apache-2.0
// The executor's issue path on a driver, without sockets and without the interposer: rings in, launches out. First checks that every launch
// arrives once and in order (each kernel computes x = 3 x + argument), then measures. Usage: bench_issue_path [driver] [seconds per row]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "proto/futex.hpp"
#include "tests/wire/support/wire_fixture.hpp"

using namespace mpsshim;
using Clock = std::chrono::steady_clock;

namespace {

constexpr char kKernels[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .entry nop(.param .u64 a)
{
  ret;
}
.visible .entry step(.param .u64 cell, .param .u32 argument)
{
  .reg .u64 %rd<3>;
  .reg .u32 %r<4>;
  ld.param.u64 %rd1, [cell];
  cvta.to.global.u64 %rd2, %rd1;
  ld.param.u32 %r1, [argument];
  ld.global.u32 %r2, [%rd2];
  mad.lo.u32 %r3, %r2, 3, %r1;
  st.global.u32 [%rd2], %r3;
  ret;
}
)";

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

struct Bench {
  std::unique_ptr<test::WireExecutor> executor;
  CUmodule module = nullptr;

  Bench(const char* path, unsigned workers) {
    std::string error;
    test::RealDriver real;
    real.driver = broker::Driver::load(path, error);
    require(real.driver != nullptr, error.c_str());
    const broker::Driver& driver = *real.driver;
    require(driver->cuInit(0) == CUDA_SUCCESS && driver->cuDeviceGet(&real.device, 0) == CUDA_SUCCESS, "cuInit");
    require(driver->cuDevicePrimaryCtxRetain(&real.context, real.device) == CUDA_SUCCESS, "context");
    require(driver->cuCtxSetCurrent(real.context) == CUDA_SUCCESS, "cuCtxSetCurrent");
    require(driver->cuModuleLoadData(&module, kKernels) == CUDA_SUCCESS, "module");
    executor = std::make_unique<test::WireExecutor>(1, workers, std::move(real), workers - 1);
  }
  const broker::Driver& driver() const { return *executor->driver; }
  proto::FunctionId add(test::WireClient& client, const char* name) const {
    auto loaded = std::make_unique<broker::LoadedFunction>();
    require(driver()->cuModuleGetFunction(&loaded->handle, module, name) == CUDA_SUCCESS, name);
    for (std::size_t i = 0;; ++i) {
      std::size_t offset = 0;
      std::size_t size = 0;
      if (driver()->cuFuncGetParamInfo(loaded->handle, i, &offset, &size) != CUDA_SUCCESS) break;
      loaded->parameters.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
      loaded->parameter_bytes = static_cast<std::uint32_t>(offset + size);
    }
    return client.add_function(std::move(loaded));
  }
};

void spin_for(const proto::FenceWord& fence, std::uint32_t target) {
  const auto end = Clock::now() + std::chrono::seconds(10);
  while (!proto::fence_reached(fence.value.load(std::memory_order_acquire), target)) {
    proto::cpu_relax();
    if (Clock::now() > end) require(false, "a fence came within ten seconds");
  }
}

void wait_for_room(test::WireClient& client) {
  while (!client.has_room()) proto::cpu_relax();
}

// Runs of all lengths, with and without fences between, on two streams.
void check_order(Bench& bench, test::WireClient& client, proto::FunctionId step) {
  const std::uint64_t cells = client.add_chunk(1 << 20);
  require(bench.driver()->cuMemsetD32_v2(cells, 0, 4) == CUDA_SUCCESS, "memset");
  struct Parameters {
    std::uint64_t cell;
    std::uint32_t argument;
  };
  std::uint32_t expected[2] = {};
  std::uint32_t fence = client.fence();
  std::uint32_t random = 1;
  for (int i = 0; i < 20'000; ++i) {
    random = random * 1664525 + 1013904223;
    const std::uint32_t which = (random >> 16) % 7 == 0 ? 1 : 0;
    proto::LaunchRecord launch{};
    launch.function = step;
    launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
    launch.parameter_bytes = 12;
    const Parameters parameters{cells + 4 * which, random};
    wait_for_room(client);
    client.post(launch, proto::kNullStream, std::as_bytes(std::span(&parameters, 1)).first(12));
    expected[which] = expected[which] * 3 + random;
    if ((random >> 8) % 37 == 0) client.post_fence(++fence);
    if ((random >> 4) % 501 == 0) spin_for(client.channel().fence(0), fence);
  }
  client.post_fence(++fence);
  spin_for(client.channel().fence(0), fence);
  std::uint32_t found[2] = {};
  require(bench.driver()->cuMemcpyDtoH_v2(found, cells, sizeof found) == CUDA_SUCCESS, "copy");
  require(client.take_async_error() == CUDA_SUCCESS, "no asynchronous error");
  require(found[0] == expected[0] && found[1] == expected[1], "every launch arrived once and in order");
}

struct Load {
  unsigned launches_per_fence = 1;
  bool waits = true;  // for each fence
  bool same_arguments = false;
};

// Runs one client's load until `stop`; launches made, and the times of rounds.
std::uint64_t run(test::WireClient& client, proto::FunctionId nop, const Load& load, const std::atomic<bool>& stop, std::vector<double>& rounds_us) {
  std::uint64_t launches = 0;
  std::uint32_t fence = client.fence();
  while (!stop.load(std::memory_order_relaxed)) {
    const auto begin = Clock::now();
    for (unsigned i = 0; i < load.launches_per_fence; ++i) {
      wait_for_room(client);
      client.post_launch(nop, load.same_arguments ? 0 : launches, proto::kNullStream, 1);
      ++launches;
    }
    client.post_fence(++fence);
    if (load.waits) {
      spin_for(client.channel().fence(0), fence);
      rounds_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
  }
  spin_for(client.channel().fence(0), fence);
  return launches;
}

void measure(const char* name, std::vector<std::unique_ptr<test::WireClient>>& clients, const std::vector<proto::FunctionId>& nops, std::size_t count,
             const Load& load, double seconds) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  std::vector<std::uint64_t> launches(count);
  std::vector<std::vector<double>> rounds(count);
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] { launches[i] = run(*clients[i], nops[i], load, stop, rounds[i]); });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  std::uint64_t total = 0;
  for (const std::uint64_t one : launches) total += one;
  std::vector<double> all;
  for (const auto& one : rounds) all.insert(all.end(), one.begin(), one.end());
  std::sort(all.begin(), all.end());
  const double median = all.empty() ? 0 : all[all.size() / 2];
  const double late = all.empty() ? 0 : all[all.size() * 99 / 100];
  std::printf("%-44s %2zu clients  %7.3f M launches/s  round median %7.1f us  p99 %7.1f us\n", name, count,
              static_cast<double>(total) / elapsed / 1e6, median, late);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const char* path = count > 1 ? arguments[1] : "libcuda.so.1";
  const double seconds = count > 2 ? std::atof(arguments[2]) : 1.0;
  const unsigned workers = count > 3 ? static_cast<unsigned>(std::atoi(arguments[3])) : 4;
  const std::size_t most = count > 4 ? static_cast<std::size_t>(std::atoi(arguments[4])) : 14;
  Bench bench(path, workers);
  std::vector<std::unique_ptr<test::WireClient>> clients;
  std::vector<proto::FunctionId> nops;
  for (std::size_t i = 0; i < most; ++i) {
    clients.push_back(std::make_unique<test::WireClient>(*bench.executor, i + 1));
    nops.push_back(bench.add(*clients.back(), "nop"));
  }
  const proto::FunctionId step = bench.add(*clients[0], "step");
  bench.executor->start_workers();
  for (auto& client : clients) bench.executor->workers->add(client->shared_session());
  broker::ExecutorParts& parts = *bench.executor->parts;
  const CUfunction nop_function = parts.nop_function;

  check_order(bench, *clients[0], step);
  std::printf("order: 20,000 launches arrived once and in order; chains %s\n", parts.chains_refused || !nop_function ? "REFUSED" : "in use");
  for (const bool chained : {false, true}) {
    parts.nop_function = chained ? nop_function : nullptr;  // workers are idle: nothing is in flight
    char name[100];
    const auto title = [&](const char* what) {
      std::snprintf(name, sizeof name, "%s: %s", chained ? "chains" : "plain", what);
      return name;
    };
    for (const std::size_t n : {1, 4, 8, 14}) {
      if (n > most) break;
      measure(title("launch + sync"), clients, nops, n, {1, true}, seconds);
      measure(title("8 launches + sync"), clients, nops, n, {8, true}, seconds);
      measure(title("storm, a fence in 1,000"), clients, nops, n, {1'000, false}, seconds);
      if (chained) measure(title("storm, same arguments"), clients, nops, n, {1'000, false, true}, seconds);
    }
  }
  std::fflush(stdout);
  std::_Exit(0);  // sessions and driver go with the process
}
