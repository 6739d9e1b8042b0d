// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "broker/executor/base/bulk_calls.hpp"
#include "tests/support/catch.hpp"

using mpsshim::broker::BulkCalls;
using mpsshim::broker::BulkLane;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr auto kSlice = 100us;

// Makes its second call, for which it has to have the lane, in a thread of its own.
class SecondCall {
 public:
  explicit SecondCall(BulkLane& lane)
      : thread_([this, &lane] {
          BulkCalls calls(lane);
          calls.before_call();
          has_begun = true;
          calls.before_call();
          has_lane = true;
        }) {}
  ~SecondCall() { thread_.join(); }

  std::atomic<bool> has_begun{false};
  std::atomic<bool> has_lane{false};

 private:
  std::thread thread_;  // behind what it sets
};

bool comes(const std::atomic<bool>& event, Clock::duration within = 30s) {
  for (const auto end = Clock::now() + within; !event && Clock::now() < end;) std::this_thread::sleep_for(100us);
  return event;
}

Clock::duration pause_after(Clock::duration call, BulkLane& lane) {
  BulkCalls calls(lane);
  calls.before_call();
  calls.before_call();
  std::this_thread::sleep_for(call);
  const auto began = Clock::now();
  calls.before_call();
  return Clock::now() - began;
}

}  // namespace

TEST_CASE("a call alone waits for nobody, the next one for the lane") {
  BulkLane lane;
  auto first = std::make_unique<BulkCalls>(lane);
  first->before_call();
  {
    SecondCall free(lane);  // one call takes no turn, so this one has the lane to itself
    CHECK(comes(free.has_lane));
  }
  first->before_call();
  SecondCall other(lane);
  CHECK(comes(other.has_begun));
  CHECK_FALSE(comes(other.has_lane, 50ms));
  first.reset();
  CHECK(comes(other.has_lane));
}

TEST_CASE("whoever has the lane keeps it, without a pause, for its slice") {
  // Thousands fit, and none if each sleeps, however shortly. The machine may be busy.
  auto shortest = Clock::duration::max();
  for (int attempt = 0; attempt < 10'000 && shortest >= kSlice; ++attempt) {
    BulkLane lane;
    BulkCalls calls(lane);
    calls.before_call();
    const auto began = Clock::now();
    for (int i = 0; i < 50; ++i) calls.before_call();
    shortest = std::min(shortest, Clock::now() - began);
  }
  CHECK(shortest < kSlice);
}

TEST_CASE("behind its slice as long goes by as it took, and five milliseconds at most") {
  BulkLane lane;
  CHECK(pause_after(2ms, lane) >= 2ms);
  CHECK(pause_after(30ms, lane) >= 5ms);
  auto shortest = Clock::duration::max();
  for (int i = 0; i < 20 && shortest >= 30ms; ++i) shortest = std::min(shortest, pause_after(30ms, lane));
  CHECK(shortest < 30ms);
}

TEST_CASE("one thread at a time makes such calls, and each has turns") {
  constexpr int kThreads = 3;
  constexpr int kCalls = 60;
  BulkLane lane;
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      BulkCalls calls(lane);
      calls.before_call();
      for (int call = 0; call < kCalls; ++call) {
        calls.before_call();
        most = std::max(most.load(), ++inside);
        std::this_thread::sleep_for(20us);
        --inside;
        ++made;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(most == 1);
  CHECK(made == kThreads * kCalls);
}

namespace {

// That one thread has while others wait, one at a time: at least one each.
int turns_waited_for(int waiters) {
  int turns = 0;
  for (int i = 0; i < waiters; ++i) {
    BulkLane lane;
    BulkCalls calls(lane);
    calls.before_call();
    calls.before_call();
    SecondCall other(lane);
    REQUIRE(comes(other.has_begun));
    std::this_thread::sleep_for(2ms);  // by then it waits, unless the machine is very busy
    for (const auto end = Clock::now() + 30s; !other.has_lane && Clock::now() < end; ++turns) {
      for (const auto began = Clock::now(); Clock::now() - began < kSlice;) {
      }
      calls.before_call();  // ends the turn that this has been
    }
    REQUIRE(other.has_lane);
  }
  return turns;
}

}  // namespace

TEST_CASE("whoever waits has the next turn, however fast the other asks for it again") {
  constexpr int kWaiters = 40;
  int fewest = turns_waited_for(kWaiters);
  for (int i = 0; i < 5 && fewest > kWaiters + 2; ++i) fewest = std::min(fewest, turns_waited_for(kWaiters));
  CHECK(fewest <= kWaiters + 2);
}
