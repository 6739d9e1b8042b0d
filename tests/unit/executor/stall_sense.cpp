// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/stall_sense.hpp"

#include "tests/support/catch.hpp"

namespace mpsshim::broker {

namespace {

using std::chrono::microseconds;
constexpr microseconds kLook{40};

// One stream, looked at every 40 us.
struct Watched {
  StallSense::Verdict look(std::uint64_t session = 1) {
    now += kLook;
    sense.see(0, session, issued, completed, now);
    return sense.conclude(now);
  }
  // A kernel of so many looks. True if it was overdue at any of them.
  bool run(int looks) {
    bool overdue = false;
    ++issued;
    for (int i = 0; i < looks; ++i) overdue |= look().overdue;
    completed = issued;
    (void)look();
    return overdue;
  }
  // The number of looks after which a kernel that has begun is overdue; 0: it is not within 1000.
  int stand() {
    ++issued;
    for (int i = 1; i <= 1000; ++i) {
      if (look().overdue) return i;
    }
    return 0;
  }
  StallSense sense{kLook};
  StallSense::Clock::time_point now{};
  std::uint32_t issued = 0xffff'fffa;  // wraps soon
  std::uint32_t completed = 0xffff'fffa;
};

}  // namespace

TEST_CASE("a stream whose work was short is overdue soon") {
  Watched stream;
  for (int i = 0; i < 20; ++i) CHECK_FALSE(stream.run(0));  // within one look
  CHECK(stream.stand() == 4);                               // more than 80 us after it was first seen
}

TEST_CASE("a stream is measured by the longest of its late work") {
  Watched stream;
  for (int i = 0; i < 20; ++i) CHECK_FALSE(stream.run(10));
  const int looks = stream.stand();
  CHECK(looks >= 20);
  CHECK(looks <= 25);
}

TEST_CASE("a stream that has shown little is not measured, but its quiet is") {
  Watched stream;
  for (int i = 0; i < 7; ++i) CHECK_FALSE(stream.run(0));
  ++stream.issued;
  for (int i = 0; i < 100; ++i) CHECK_FALSE(stream.look().overdue);
  CHECK(stream.look().quiet >= microseconds(4000));
}

TEST_CASE("a probe that comes back makes a long kernel's stream patient: few probes for it") {
  Watched stream;
  for (int i = 0; i < 20; ++i) (void)stream.run(0);
  ++stream.issued;
  int probes = 0;
  for (int i = 0; i < 2500; ++i) {  // 100 ms
    if (!stream.look().overdue) continue;
    ++probes;
    stream.sense.absolve(stream.now);
  }
  CHECK(probes >= 1);
  CHECK(probes <= 11);
}

TEST_CASE("the next session on a stream is not measured by the last one's work") {
  Watched stream;
  for (int i = 0; i < 20; ++i) (void)stream.run(0);
  ++stream.issued;
  for (int i = 0; i < 100; ++i) CHECK_FALSE(stream.look(2).overdue);
}

TEST_CASE("idle streams, and streams of nobody, are neither busy nor quiet") {
  Watched stream;
  for (int i = 0; i < 100; ++i) {
    const auto verdict = stream.look();
    CHECK_FALSE(verdict.busy);
    CHECK_FALSE(verdict.active);
    CHECK(verdict.quiet == StallSense::Clock::duration(0));
  }
  ++stream.issued;
  CHECK_FALSE(stream.look(0).busy);
}

TEST_CASE("work that began and ended between two looks is activity") {
  Watched stream;
  (void)stream.look();
  stream.completed = ++stream.issued;
  const auto verdict = stream.look();
  CHECK(verdict.active);
  CHECK_FALSE(verdict.busy);
}

}  // namespace mpsshim::broker
