// SPDX-License-Identifier: Apache-2.0
// The channel's lock: one at a time, and nobody sleeps on when it is free.
#include "interposer/channel/lock.hpp"

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

using mpsshim::interposer::ChannelLock;
using namespace std::chrono_literals;

TEST_CASE("channel lock: held by one thread at a time") {
  ChannelLock lock;
  constexpr int kThreads = 4, kRounds = 20'000;
  long count = 0;  // plain: the lock is what makes the sum right
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const std::lock_guard guard(lock);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(count == kThreads * kRounds);
}

TEST_CASE("channel lock: what is held is not taken") {
  ChannelLock lock;
  const std::lock_guard guard(lock);
  std::thread([&] { CHECK_FALSE(lock.try_lock()); }).join();
}

// Each round a sleeper waits for a holder that leaves. Sleeping on until the time limit takes 20 ms a round.
TEST_CASE("channel lock: who sleeps is woken by the one who leaves") {
  ChannelLock lock;
  constexpr int kRounds = 500;
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; round < kRounds; ++round) {
    lock.lock();
    std::thread sleeper([&] { const std::lock_guard guard(lock); });
    std::this_thread::sleep_for(100us + round % 10 * 10us);  // until it sleeps, or is about to
    lock.unlock();
    sleeper.join();
  }
  CHECK(std::chrono::steady_clock::now() - start < kRounds * 10ms);
}
