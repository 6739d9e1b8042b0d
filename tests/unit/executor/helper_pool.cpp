// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/helper_pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;

namespace {

constexpr std::chrono::seconds kLimit{20};

// Jobs that stand still until they are let go.
class Blocker {
 public:
  void stand() {
    std::unique_lock lock(mutex_);
    ++standing_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --standing_;
  }
  [[nodiscard]] bool wait_for_standing(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [&] { return standing_ == count; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int standing_ = 0;
  bool open_ = false;
};

template <typename Condition>
bool comes_true(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::ptrdiff_t threads() { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator()); }

}  // namespace

TEST_CASE("jobs of one session begin in the order they came, so many at a time as threads are at rest") {
  Blocker blocker;
  std::atomic<int> done{0};
  {
    HelperPool pool(2, [] {});
    for (int i = 0; i < 20; ++i) {
      pool.submit(1, [&] {
        blocker.stand();
        ++done;
      });
    }
    REQUIRE(blocker.wait_for_standing(2));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a third one would stand by now
    CHECK(blocker.wait_for_standing(2));
    blocker.open();
  }
  CHECK(done == 20);  // the end has waited for what was queued
}

TEST_CASE("a session whose jobs do not end holds up no other, and threads made for that end again") {
  // A sanitizer's own thread comes with the first of ours. The kernel lists a thread for a moment after it was joined.
  std::atomic<pid_t> first{0};
  std::thread([&] { first = gettid(); }).join();
  REQUIRE(comes_true([&] { return !std::filesystem::exists("/proc/self/task/" + std::to_string(first)); }));
  const std::ptrdiff_t before = threads();
  Blocker blocker;
  HelperPool pool(2, [] {});
  for (std::uint64_t session = 1; session <= 3; ++session) {
    for (int i = 0; i < 100; ++i) pool.submit(session, [&] { blocker.stand(); });
  }
  REQUIRE(blocker.wait_for_standing(6));
  std::atomic<bool> ran{false};
  pool.submit(9, [&] { ran = true; });
  CHECK(comes_true([&] { return ran.load(); }));
  blocker.open();
  CHECK(comes_true([&] { return threads() == before + 3; }));  // two at rest, and the one that makes others
}

TEST_CASE("the pool grows up to its limit") {
  Blocker blocker;
  std::atomic<int> done{0};
  {
    HelperPool pool(1, [] {});
    for (std::uint64_t session = 1; session <= 2 * HelperPool::kGrowth; ++session) {
      pool.submit(session, [&] {
        blocker.stand();
        ++done;
      });
    }
    REQUIRE(blocker.wait_for_standing(static_cast<int>(HelperPool::kGrowth)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(blocker.wait_for_standing(static_cast<int>(HelperPool::kGrowth)));
    blocker.open();
  }
  CHECK(done == 2 * static_cast<int>(HelperPool::kGrowth));
}

TEST_CASE("sessions have turns, whoever came first and with however many jobs") {
  Blocker blocker;
  std::vector<std::uint64_t> order;
  {
    HelperPool pool(1, [] {});
    for (std::uint64_t session = 1; session <= HelperPool::kGrowth; ++session) pool.submit(session + 100, [&] { blocker.stand(); });
    REQUIRE(blocker.wait_for_standing(static_cast<int>(HelperPool::kGrowth)));  // every thread there may be
    std::mutex mutex;
    for (int i = 0; i < 50; ++i) {
      pool.submit(1, [&] {
        const std::lock_guard lock(mutex);
        order.push_back(1);
      });
    }
    pool.submit(2, [&] {
      const std::lock_guard lock(mutex);
      order.push_back(2);
    });
    blocker.open();
    REQUIRE(comes_true([&] {
      const std::lock_guard lock(mutex);
      return order.size() == 51;
    }));
  }
  CHECK(std::find(order.begin(), order.end(), 2) - order.begin() <= 10);
}

TEST_CASE("what is of no session finds a thread where sessions have them all") {
  Blocker blocker;
  HelperPool pool(1, [] {});
  for (std::uint64_t session = 1; session <= HelperPool::kGrowth; ++session) pool.submit(session, [&] { blocker.stand(); });
  REQUIRE(blocker.wait_for_standing(static_cast<int>(HelperPool::kGrowth)));
  std::atomic<bool> ran{false};
  pool.submit(HelperPool::kOfNobody, [&] { ran = true; });
  CHECK(comes_true([&] { return ran.load(); }));
  blocker.open();
}

TEST_CASE("sessions that have as many jobs running as they may leave threads to processes that have none") {
  Blocker blocker;
  HelperPool pool(2, [] {});
  constexpr unsigned kMost = 2 * HelperPool::kGrowth;
  for (std::uint64_t session = 1; session <= HelperPool::kGrowth; ++session) {
    for (int i = 0; i < 16; ++i) pool.submit({session, session, 1000}, [&] { blocker.stand(); });
  }
  REQUIRE(blocker.wait_for_standing(kMost - kMost / HelperPool::kProcessReserve));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(blocker.wait_for_standing(kMost - kMost / HelperPool::kProcessReserve));
  // More sessions of the same processes find none, another process does, as often as it has nothing running.
  std::atomic<int> ran{0};
  std::atomic<bool> is_late{false};
  pool.submit({100, 1, 1000}, [&] { is_late = true; });
  for (int i = 0; i < 5; ++i) pool.submit({101, 101, 1000}, [&] { ++ran; });
  CHECK(comes_true([&] { return ran == 5; }));
  CHECK_FALSE(is_late);
  blocker.open();
  CHECK(comes_true([&] { return is_late.load(); }));
}

TEST_CASE("a user whose processes have all threads leaves some to users that have none") {
  Blocker blocker, others;
  HelperPool pool(2, [] {});
  constexpr unsigned kMost = 2 * HelperPool::kGrowth;
  for (std::uint64_t session = 1; session <= 3 * kMost; ++session) pool.submit({session, session, 1000}, [&] { blocker.stand(); });
  REQUIRE(blocker.wait_for_standing(kMost));
  std::atomic<bool> is_late{false};
  pool.submit({200, 200, 1000}, [&] { is_late = true; });
  for (std::uint64_t user = 2000; user < 2004; ++user) pool.submit({user, user, user}, [&] { others.stand(); });
  CHECK(others.wait_for_standing(kMost / HelperPool::kUserReserve));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(others.wait_for_standing(kMost / HelperPool::kUserReserve));
  CHECK_FALSE(is_late);
  others.open();
  CHECK(comes_true([&] { return others.wait_for_standing(0); }));
  blocker.open();
  CHECK(comes_true([&] { return is_late.load(); }));
}

TEST_CASE("a job may submit another one") {
  std::atomic<int> done{0};
  HelperPool pool(1, [] {});
  pool.submit(1, [&] {
    pool.submit(1, [&] { ++done; });
    ++done;
  });
  CHECK(comes_true([&] { return done == 2; }));
}
