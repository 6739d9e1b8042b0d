// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/process/programs/topics.hpp"

namespace mpsshim::test {

namespace {

// Runs `body` on that many threads, the context current; throws the first failure.
void on_threads(const Device& device, unsigned count, const std::function<void(unsigned)>& body) {
  std::mutex mutex;
  std::string first_failure;
  std::vector<std::thread> threads;
  for (unsigned index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      try {
        CU(cuCtxSetCurrent(device.context));
        body(index);
      } catch (const std::exception& failure) {
        const std::lock_guard lock(mutex);
        if (first_failure.empty()) first_failure = "thread " + std::to_string(index) + ": " + failure.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  require(first_failure.empty(), first_failure);
}

template <typename Act>
struct OnExit {
  explicit OnExit(Act chosen) : act(std::move(chosen)) {}
  ~OnExit() { act(); }
  Act act;
};

}  // namespace

// Each thread has its own stream under the one name.
void per_thread_streams(const Device& device) {
  on_threads(device, 4, [&](unsigned index) {
    Words words(10'000, index);
    for (unsigned turn = 1; turn <= 50; ++turn) {
      CU(device.launch_add(words.address, words.count(), turn, CU_STREAM_PER_THREAD));
      words.add(turn);
    }
    CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    CU(cuStreamQuery(CU_STREAM_PER_THREAD));
    words.check();
  });
}

// Everything at once: allocations, copies, launches, frees.
void many_threads(const Device& device) {
  on_threads(device, 8, [&](unsigned index) {
    for (unsigned round = 0; round < 25; ++round) {
      Words words(1000 + index * 37, round);
      CUstream stream = nullptr;
      CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      for (unsigned turn = 1; turn <= 10; ++turn) {
        CU(device.launch_add(words.address, words.count(), turn, stream));
        words.add(turn);
      }
      CU(cuStreamSynchronize(stream));
      words.check();
      CU(cuStreamDestroy(stream));
      CU(cuMemFree(words.address));
    }
  });
  // One stream from all threads: the order among them is open, the sum is not.
  Words sum(1000, 0);
  on_threads(device, 8, [&](unsigned) {
    for (unsigned turn = 0; turn < 100; ++turn) CU(device.launch_add(sum.address, sum.count(), 1, nullptr));
  });
  sum.add(800);
  sum.check();
}

// Streams end with work under way while other threads wait for all there are: no call fails.
void ending_streams(const Device& device) {
  constexpr unsigned kWaiting = 3;
  std::atomic<unsigned> at_work{5};
  on_threads(device, at_work + kWaiting, [&](unsigned index) {
    Words words(64, index);
    if (index < kWaiting) {
      while (at_work != 0) CU(cuCtxSynchronize());
      return;
    }
    const OnExit done([&] { --at_work; });
    for (unsigned round = 0; round < 3'000; ++round) {
      CUstream stream = nullptr;
      CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
      for (unsigned turn = 0; turn < 4; ++turn) CU(device.launch_add(words.address, words.count(), 1, stream));
      if (round % 2 == 0) CU(cuStreamSynchronize(stream));
      CU(cuStreamDestroy(stream));
    }
  });
}

}  // namespace mpsshim::test
