// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/window/long_jobs.hpp"

#include <memory>
#include <thread>

#include "broker/executor/window/quiet_window.hpp"
#include "tests/support/catch.hpp"

using namespace std::chrono_literals;

namespace mpsshim::broker {
namespace {

constexpr std::uint64_t kAsker = 9;
constexpr std::uint64_t kNeighbour = 10;

template <typename Condition>
bool happens(Condition condition) {
  for (const auto limit = LongJobs::Clock::now() + 10s; LongJobs::Clock::now() < limit; std::this_thread::sleep_for(1ms)) {
    if (condition()) return true;
  }
  return false;
}

// Streams 0 and 1 are the asker's, 2 another session's.
struct LongFixture {
  std::unique_ptr<ProgressTable> table = std::make_unique<ProgressTable>();
  LongJobs jobs{*table};
  LongJobs::Clock::time_point now = LongJobs::Clock::now();
  WindowJob job{.what = "a test's call", .session = kAsker, .run = {}, .expected = 20ms};

  LongFixture() {
    table->stream[0].session = table->stream[1].session = kAsker;
    table->stream[2].session = kNeighbour;
  }
  void work(std::uint32_t stream) { ++table->stream[stream].issued; }
  void go_on(std::chrono::milliseconds time, bool other_works) {
    for (const auto end = now + time; now < end; now += 50ms) {
      work(0);
      if (other_works) work(2);
      jobs.look(3, now);
    }
  }
  void run(std::chrono::milliseconds took) {
    now += took;
    jobs.note(job, took, now);
  }
};

}  // namespace

TEST_CASE("half a second of long jobs may come in a row, then they wait for as long as others work") {
  LongFixture f;
  for (int i = 0; i < 5; ++i) {
    CHECK_FALSE(f.jobs.holds_back(f.job, f.now));
    f.run(100ms);
  }
  f.run(100ms);
  CHECK(f.jobs.holds_back(f.job, f.now));
  f.go_on(5s, true);
  CHECK(f.jobs.holds_back(f.job, f.now));
  f.go_on(15s, true);  // 600 ms, 128 times each, less those that may come in a row
  CHECK_FALSE(f.jobs.holds_back(f.job, f.now));
}

TEST_CASE("a long job does not wait beside sessions that are idle, nor for work of its own session") {
  LongFixture f;
  f.run(10s);
  f.go_on(100ms, true);
  CHECK(f.jobs.holds_back(f.job, f.now));
  f.go_on(500ms, false);
  CHECK_FALSE(f.jobs.holds_back(f.job, f.now));
  f.go_on(50ms, true);
  CHECK(f.jobs.holds_back(f.job, f.now));
  f.table->stream[2].session = 0;
  CHECK_FALSE(f.jobs.holds_back(f.job, f.now));
}

TEST_CASE("short jobs neither wait nor count") {
  LongFixture f;
  f.job.expected = 9ms;
  f.run(100s);
  f.job.expected = 20ms;
  CHECK_FALSE(f.jobs.holds_back(f.job, f.now));
  f.run(100s);
  CHECK(f.jobs.holds_back(f.job, f.now));
  f.job.expected = 0ms;
  CHECK_FALSE(f.jobs.holds_back(f.job, f.now));
}

TEST_CASE("a window goes on with short jobs while long ones wait, and with those once others are idle") {
  const auto table = std::make_unique<ProgressTable>();
  table->stream[0].session = kNeighbour;
  QuietWindow window(*table, 1, {}, [] {});
  window.set_used_streams([] { return 1u; });
  std::atomic<int> long_ones{0}, short_ones{0};
  std::atomic<bool> is_over{false};
  std::thread other([&] {  // work that ends at once
    while (!is_over) {
      ++table->stream[0].issued;
      table->stream[0].completed = table->stream[0].issued.load();
      std::this_thread::sleep_for(1ms);
    }
  });
  const auto ask = [&](std::chrono::microseconds expected, std::chrono::milliseconds takes, std::atomic<int>& count) {
    const auto run = [&, takes](WindowResult) {
      std::this_thread::sleep_for(takes);
      ++count;
    };
    window.submit({.what = "a test's call", .session = kAsker, .run = run, .expected = expected});
  };
  ask(600ms, 600ms, long_ones);
  REQUIRE(happens([&] { return long_ones == 1; }));
  ask(20ms, 1ms, long_ones);
  for (int i = 0; i < 20; ++i) {
    ask(0ms, 0ms, short_ones);
    std::this_thread::sleep_for(20ms);
  }
  CHECK(happens([&] { return short_ones == 20; }));
  CHECK(long_ones == 1);
  is_over = true;
  other.join();
  CHECK(happens([&] { return long_ones == 2; }));
}

}  // namespace mpsshim::broker
