// SPDX-License-Identifier: Apache-2.0
// Whose images take how much of the processor's time, and who waits for it.
#include <algorithm>
#include <ctime>

#include <sys/wait.h>
#include <unistd.h>

#include "broker/control/processes/executor_process.hpp"
#include "tests/unit/control/support/compiler_peer.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

TEST_CASE("a user whose images have taken too much of the processor's time comes behind others, and is served when nobody else is") {
  Readers f;
  f.ask(1, 1);
  CompilerPeer& greedy = f.peer(0);
  const std::uint64_t first = f.job(greedy).number;
  greedy.used = std::chrono::seconds(40);
  f.answer(greedy, first);
  f.ask(1, 2);  // alone it waits for nobody
  const std::uint64_t second = f.job(greedy).number;
  f.ask(2, 1, kReader + 1);
  CompilerPeer& other = f.peer(1);
  const std::uint64_t theirs = f.job(other).number;
  for (std::uint64_t image = 3; image <= 5; ++image) f.ask(1, image);
  f.answer(greedy, second);
  turn_for(f.loop, 30);
  CHECK_FALSE(f.has_job(greedy));
  f.ask(2, 2, kReader + 1);
  f.answer(other, theirs);
  f.serve(other);  // the next one of theirs, too, before any of the first user's
  CHECK(f.answers == std::vector<std::string>{"1: 0", "1: 0", "2: 0", "2: 0"});
  SECTION("their jobs have ended") {
    for (int i = 0; i < 3; ++i) f.serve(greedy);
  }
  SECTION("their process has died") {
    f.serve(greedy);
    f.ask(2, 3, kReader + 1);
    (void)f.job(other);
    f.serve(greedy);  // was under way
    turn_for(f.loop, 10);
    CHECK_FALSE(f.has_job(greedy));
    f.compilers.drop(2);
    f.serve(greedy);
  }
  CHECK(std::ranges::count(f.answers, "1: 0") == 5);
}

TEST_CASE("what a user's images take of the processor counts in processes of both kinds, and so do others that are at work there") {
  Readers f;
  PeerCompilers launcher;
  Compilers linkers(f.loop, launcher, f.shares, {}, trade_of_linkers(std::chrono::seconds(60)));
  f.ask_of(linkers, 1, 1);
  CompilerPeer& greedy = *launcher.peers.at(0);
  const std::uint64_t first = f.job(greedy).number;
  greedy.used = std::chrono::seconds(40);
  f.answer(greedy, first);
  f.ask(2, 1, kReader + 1);
  const std::uint64_t theirs = f.job(f.peer(0)).number;
  f.ask_of(linkers, 1, 2);  // another user's image is read
  f.ask(1, 3);              // its own are read out of the same share
  turn_for(f.loop, 30);
  CHECK_FALSE(f.has_job(greedy));
  REQUIRE(f.launcher.peers.size() == 2);
  CHECK_FALSE(f.has_job(f.peer(1)));
  f.answer(f.peer(0), theirs);
  f.serve(greedy);
  f.serve(f.peer(1));
  CHECK(f.answers == std::vector<std::string>{"1: 0", "2: 0", "1: 0", "1: 0"});
}

TEST_CASE("a user is told once that its time is used up, and again when that has come in since") {
  using namespace std::chrono_literals;
  const ProcessorBudget::Clock::time_point start{};
  ProcessorBudget budget(30s);
  CHECK_FALSE(budget.take_news(1));
  budget.charge(1, 40s, start);
  CHECK(budget.take_news(1));
  CHECK_FALSE(budget.take_news(1));
  budget.charge(1, 1s, start + 1s);  // overdrawn still
  CHECK_FALSE(budget.take_news(1));
  budget.charge(1, 31s, start + 1min);
  CHECK(budget.take_news(1));
}

TEST_CASE("who has to wait for others does so until it has time again, whatever they do") {
  Readers f({}, trade_of_readers(), std::chrono::seconds(60));
  f.ask(1, 1);
  const std::uint64_t first = f.job(f.peer(0)).number;
  f.peer(0).used = std::chrono::milliseconds(60'200);
  f.answer(f.peer(0), first);
  f.ask(2, 1, kReader + 1);
  (void)f.job(f.peer(1));  // does not end
  const auto began = EventLoop::Clock::now();
  f.ask(1, 2);
  f.serve(f.peer(0));
  const auto waited = EventLoop::Clock::now() - began;
  CHECK(waited > std::chrono::milliseconds(100));
  CHECK(f.answers.back() == "1: 0");
}

TEST_CASE("a user's processor time comes in again, and one without a limit is never overdrawn") {
  using namespace std::chrono_literals;
  const ProcessorBudget::Clock::time_point start{};
  ProcessorBudget budget(30s);
  budget.charge(1, 29s, start);
  CHECK(budget.overdrawn_for(1, start) == 0s);
  budget.charge(1, 11s, start);
  CHECK(std::chrono::round<std::chrono::milliseconds>(budget.overdrawn_for(1, start)) == 20s);
  CHECK(std::chrono::round<std::chrono::milliseconds>(budget.overdrawn_for(1, start + 15s)) == 5s);
  CHECK(budget.overdrawn_for(1, start + 20s) == 0s);
  CHECK(budget.overdrawn_for(2, start) == 0s);
  budget.charge(1, 1h, start + 20s);  // a minute's worth of debt at most
  CHECK(std::chrono::round<std::chrono::milliseconds>(budget.overdrawn_for(1, start + 20s)) == 60s);
  budget.charge(1, 31s, start + 1h);  // nothing is left over from longer ago
  CHECK(std::chrono::round<std::chrono::milliseconds>(budget.overdrawn_for(1, start + 1h)) == 2s);
  ProcessorBudget none(0s);
  none.charge(1, 1h, start);
  CHECK(none.overdrawn_for(1, start) == 0s);
}

TEST_CASE("what a compiler process has used of the processor is known until it is reaped") {
  CompilerProcessLauncher launcher({});
  CompilerLife life;
  life.pid = fork();
  REQUIRE(life.pid >= 0);
  if (life.pid == 0) {
    timespec used{};
    while (used.tv_nsec < 50'000'000) clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    _exit(0);
  }
  siginfo_t ended{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(life.pid), &ended, WEXITED | WNOWAIT) == 0);
  CHECK(launcher.processor_time(life) >= std::chrono::milliseconds(50));
  CHECK(launcher.processor_time(life) < std::chrono::seconds(2));
  CHECK(launcher.reap(life).signal == 0);
}
