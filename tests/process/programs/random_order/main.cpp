// SPDX-License-Identifier: Apache-2.0
// random_order [--seed N] [--operations N] [--seconds S] [--threads T]: random launches, copies, memsets, events and waits over several
// streams, all memory compared with a model of the same sequence. Without --seconds one sequence; with it sequences of seed N, N+T, ... until
// the time is over. Each thread makes its own, at once. A wrong word ends the program: status 1, a line with the seed and the word.
//
// random_order --node-bytes B: one node of a graph instead (own_node.hpp).
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/programs/driver.hpp"
#include "tests/process/programs/random_order/own_node.hpp"
#include "tests/process/programs/random_order/world.hpp"

using namespace mpsshim::test;

namespace {

struct Options {
  std::uint64_t seed = 1;
  unsigned operations = 3000;
  unsigned seconds = 0;
  unsigned threads = 1;
  unsigned node_bytes = 0;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return false;
    const unsigned long long value = std::strtoull(argv[i + 1], nullptr, 10);
    const std::string name = argv[i];
    if (name == "--seed")
      options.seed = value;
    else if (name == "--operations")
      options.operations = static_cast<unsigned>(value);
    else if (name == "--seconds")
      options.seconds = static_cast<unsigned>(value);
    else if (name == "--threads" && value > 0)
      options.threads = static_cast<unsigned>(value);
    else if (name == "--node-bytes" && value > 0)
      options.node_bytes = static_cast<unsigned>(value);
    else
      return false;
  }
  return true;
}

class Sequences {
 public:
  explicit Sequences(const Options& options) : options_(options), end_(Clock::now() + std::chrono::seconds(options.seconds)) {
    CUdevice device = 0;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context_, device));
    CU(cuCtxSetCurrent(context_));
  }

  // False: something was wrong, and has been said.
  bool run() {
    if (options_.node_bytes != 0) {
      use_own_node(options_.node_bytes);
      std::printf("a node made with %u bytes of parameters right\n", options_.node_bytes);
      return true;
    }
    std::vector<std::thread> threads;
    for (unsigned index = 1; index < options_.threads; ++index) threads.emplace_back([this, index] { run_thread(index); });
    run_thread(0);
    for (std::thread& thread : threads) thread.join();
    if (!failed_) std::printf("%u sequences of %u operations right\n", done_.load(), options_.operations);
    return !failed_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void run_thread(unsigned index) {
    std::uint64_t seed = options_.seed + index;
    try {
      CU(cuCtxSetCurrent(context_));
      do {
        World world(seed, options_.threads == 1);
        world.run(options_.operations);
        world.finish();
        ++done_;
        seed += options_.threads;
      } while (Clock::now() < end_ && !failed_);
    } catch (const std::exception& failure) {
      if (!failed_.exchange(true)) std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed), failure.what());
    }
  }

  const Options options_;
  const Clock::time_point end_;
  CUcontext context_ = nullptr;
  std::atomic<unsigned> done_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: random_order [--seed N] [--operations N] [--seconds S] [--threads T] | --node-bytes B\n");
    return 2;
  }
  try {
    return Sequences(options).run() ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "random_order: %s\n", failure.what());
    return 1;
  }
}
