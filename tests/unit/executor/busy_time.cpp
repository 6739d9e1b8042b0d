// SPDX-License-Identifier: Apache-2.0
// Looks as the fault watch makes them, at work that is known: what they add up to is how long there was work, however the pace of looks follows it.
#include "broker/executor/process/busy_time.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = BusyTime::Clock;
using Duration = Clock::duration;

// The same again and again.
struct Work {
  Duration lasts;
  Duration period;
  [[nodiscard]] bool is_under_way(Duration at) const { return at % period < lasts; }
  [[nodiscard]] std::int64_t ends_before(Duration at) const { return (at - lasts) / period + (at >= lasts ? 1 : 0); }
  [[nodiscard]] Duration next_begin(Duration at) const { return (at + period - Duration(1)) / period * period; }
};

// What FaultWatch::pause() does, and how long sleeps take.
struct Looks {
  explicit Looks(std::uint32_t seed) : busy_time(seed), lots(seed) { file->row[1].session = 1; }

  // Seconds that are counted in `runs` of it, where sleeps last `over` longer than asked for, or up to twice that.
  double count(const Work& work, Duration runs, Duration over) {
    const auto oversleep = [&] { return over + Duration(lots() % static_cast<std::uint32_t>(over.count())); };
    Duration at{0}, last_activity = -milliseconds(10), attentive_until{0};
    std::int64_t ended = 0;
    busy_time.begin(Clock::time_point(at));
    while (at < runs) {
      const bool is_busy = work.is_under_way(at);
      if (is_busy) busy_time.see(1);
      busy_time.conclude(Clock::time_point(at), counts);
      const bool has_ended = std::exchange(ended, work.ends_before(at)) != work.ends_before(at);
      if (is_busy || has_ended) {
        last_activity = at;
        attentive_until = at + milliseconds(100);
      }
      if (at - last_activity < milliseconds(2)) {
        at += busy_time.until_next(Clock::time_point(at), microseconds(500), false) + oversleep();
      } else if (at < attentive_until) {
        at += busy_time.until_next(Clock::time_point(at), milliseconds(2), true) + oversleep();
      } else {
        at = std::max(at, work.next_begin(at) - microseconds(10));  // the doorbell, before the driver has the work
        busy_time.begin(Clock::time_point(at));
        attentive_until = at + milliseconds(10);
        at += microseconds(5);
      }
    }
    return static_cast<double>(file->row[1].gpu_ns.load()) / 1e9;
  }

  std::unique_ptr<SessionCountsFile> file = std::make_unique<SessionCountsFile>();
  SessionCountsView counts{file.get()};
  BusyTime busy_time;
  std::minstd_rand lots;
};

double share(const Work& work) { return static_cast<double>(work.lasts.count()) / static_cast<double>(work.period.count()); }

}  // namespace

TEST_CASE("busy time: what is counted is how long there was work, at whatever pace it comes") {
  constexpr Duration kUsual = microseconds(40), kPrecise = microseconds(1);  // as PR_SET_TIMERSLACK makes it
  const struct {
    const char* what;
    Work work;
    Duration runs;
    Duration oversleep;
    double tolerance;
  } cases[] = {
      {"all the time", {milliseconds(100), milliseconds(100)}, std::chrono::seconds(10), kUsual, 0.001},
      {"short kernels, each waited for", {microseconds(13), microseconds(57)}, std::chrono::seconds(100), kUsual, 0.02},
      {"a millisecond of ten", {microseconds(1'003), microseconds(10'007)}, std::chrono::seconds(200), kUsual, 0.02},
      {"a tenth of a millisecond of seven", {microseconds(97), microseconds(7'001)}, std::chrono::seconds(1'000), kUsual, 0.04},
      {"long kernels after pauses", {microseconds(5'003), microseconds(50'021)}, std::chrono::seconds(200), kUsual, 0.02},
      {"short work that ends a sleep", {microseconds(303), microseconds(200'003)}, std::chrono::seconds(4'000), kPrecise, 0.05},
      {"work as long as a pause of looks, that ends a sleep",
       {microseconds(2'003), microseconds(200'003)},
       std::chrono::seconds(1'000),
       kPrecise,
       0.03},
      {"seconds of sleep between", {microseconds(811), microseconds(3'000'017)}, std::chrono::seconds(20'000), kPrecise, 0.05},
  };
  for (const auto& tried : cases) {
    for (const std::uint32_t seed : {1u, 4711u, 0xdead'beefu}) {
      INFO(tried.what << ", seed " << seed);
      const double expected = share(tried.work) * std::chrono::duration<double>(tried.runs).count();
      CHECK(Looks(seed).count(tried.work, tried.runs, tried.oversleep) == Approx(expected).epsilon(tried.tolerance));
    }
  }
}

TEST_CASE("busy time: what a late look misses at the end of a sleep is no more than how late it is") {
  constexpr Duration kLate = microseconds(50);
  const Work work{microseconds(303), microseconds(200'003)};
  const Duration runs = std::chrono::seconds(4'000);
  const double expected = share(work) * std::chrono::duration<double>(runs).count();
  const double counted = Looks(1).count(work, runs, kLate);
  const double most_missed = 2 * std::chrono::duration<double>(kLate).count() * static_cast<double>(runs / work.period);
  CHECK(counted < 1.05 * expected);
  CHECK(counted > 0.95 * expected - most_missed);
}

TEST_CASE("busy time: several streams of a session count once, several sessions each for itself") {
  const auto file = std::make_unique<SessionCountsFile>();
  SessionCountsView counts(file.get());
  BusyTime busy_time(1);
  Clock::time_point now{};
  busy_time.begin(now);
  now += busy_time.until_next(now, milliseconds(1), false) + milliseconds(1);
  busy_time.conclude(now, counts);  // by lot
  for (int look = 0; look < 10; ++look) {
    now += milliseconds(1);
    for (const std::uint32_t row : {1u, 2u, 1u, 1u, 0u, kCountedSessions}) busy_time.see(row);
    busy_time.conclude(now, counts);
  }
  now += milliseconds(1);
  busy_time.conclude(now, counts);
  now += milliseconds(5);
  busy_time.conclude(now, counts);
  CHECK(file->row[1].gpu_ns == 10'500'000u);  // half of the last pause
  CHECK(file->row[2].gpu_ns == 10'500'000u);
  CHECK(file->row[0].gpu_ns == 0u);
  CHECK(file->row[3].gpu_ns == 0u);
}

TEST_CASE("busy time: a sleep counts for nobody, and without a file nothing is written") {
  const auto file = std::make_unique<SessionCountsFile>();
  SessionCountsView counts(file.get());
  BusyTime busy_time(1);
  busy_time.begin(Clock::time_point{});
  const Clock::time_point awake = Clock::time_point{} + std::chrono::seconds(100);
  busy_time.begin(awake);
  busy_time.see(1);
  busy_time.conclude(awake + microseconds(3), counts);
  CHECK(file->row[1].gpu_ns == 1'500u);
  SessionCountsView nothing(nullptr);
  CHECK(nothing.index_of(1) == 0);
  busy_time.see(1);
  busy_time.conclude(awake + milliseconds(3), nothing);
  CHECK(file->row[1].gpu_ns == 1'500u);
}

}  // namespace mpsshim::broker
