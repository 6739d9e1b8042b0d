// SPDX-License-Identifier: Apache-2.0
// Who has which image read by whom, with compiler processes that the test plays itself.
#include <algorithm>
#include <cstdlib>

#include "broker/control/processes/executor_process.hpp"
#include "tests/unit/control/support/compiler_peer.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

TEST_CASE("an image is read once, however many ask for it") {
  Readers f;
  f.ask(1, 7);
  f.ask(2, 7);
  f.serve(f.peer(0));
  CHECK(f.has_answers({"1: 0", "2: 0"}));
  f.ask(3, 7);
  CHECK(f.answers.back() == "3: 0");  // at once
  CHECK(f.launcher.peers.size() == 1);
  // Another user's is another one's.
  f.ask(4, 7, kReader + 1);
  REQUIRE(f.launcher.peers.size() == 2);
  f.serve(f.peer(1));
  CHECK(f.answers.back() == "4: 0");
  f.compilers.forget([](std::uint64_t) { return false; });
  CHECK(f.compilers.kept() == 0);
}

TEST_CASE("what may be another answer next time is not kept") {
  Readers f;
  f.ask(1, 7);
  f.answer(f.peer(0), f.job(f.peer(0)).number, true, proto::Seal::content, CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(f.answers.back() == "1: 0");  // the file says what has become of it
  CHECK(f.compilers.kept() == 0);
  f.ask(1, 7);
  f.serve(f.peer(0));
  CHECK(f.compilers.kept() == 1);
}

TEST_CASE("each device has a process of its own, and a text that two have died over is none") {
  Readers f({}, trade_of_linkers(std::chrono::seconds(60)));
  f.ask(1, 7);
  f.ask(1, 7, kReader, 1);
  REQUIRE(f.launcher.peers.size() == 2);
  CHECK(f.launcher.devices == std::vector<unsigned>{0, 1});
  f.serve(f.peer(1));
  CHECK(f.answers == std::vector<std::string>{"1: 0"});
  (void)f.job(f.peer(0));
  f.peer(0).die(SIGSEGV);
  REQUIRE(turn_until(f.loop, [&] { return f.launcher.peers.size() == 3; }));
  (void)f.job(f.peer(2));
  f.peer(2).die(SIGSEGV);
  CHECK(f.has_answers({"1: 0", "1: 218"}));
}

TEST_CASE("a user's sessions have turns") {
  Readers f;
  for (std::uint64_t image = 1; image <= 4; ++image) f.ask(1, image);
  f.ask(2, 11);
  f.ask(2, 12);
  f.ask(3, 21);
  for (int i = 0; i < 7; ++i) f.serve(f.peer(0));
  CHECK(f.answers == std::vector<std::string>{"1: 0", "2: 0", "3: 0", "1: 0", "2: 0", "1: 0", "1: 0"});
}

TEST_CASE("a broker's environment does not have its drivers compile what they have machine code of") {
  const auto names = [](const char* variable) {
    return std::ranges::any_of(driver_environment(), [&](const std::string& entry) { return entry.starts_with(std::string(variable) + "="); });
  };
  for (const char* variable : {"CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT", "MPSSHIM_TEST_INHERITED"}) REQUIRE(setenv(variable, "1", 1) == 0);
  CHECK_FALSE(names("CUDA_FORCE_PTX_JIT"));
  CHECK_FALSE(names("CUDA_FORCE_JIT"));
  CHECK(names("MPSSHIM_TEST_INHERITED"));
  for (const char* variable : {"CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT", "MPSSHIM_TEST_INHERITED"}) unsetenv(variable);
}

TEST_CASE("only so many images of a session wait, and so many of a user") {
  CompilerLimits limits;
  limits.jobs = 4;
  limits.session_jobs = 2;
  Readers f(limits);
  for (std::uint64_t image = 1; image <= 4; ++image) f.ask(1, image);  // one is under way
  CHECK(f.answers == std::vector<std::string>{"1: 2"});
  f.ask(2, 11);
  f.ask(2, 12);
  f.ask(3, 21);
  CHECK(f.answers == std::vector<std::string>{"1: 2", "3: 2"});
}

TEST_CASE("a process that dies costs its job one attempt, the second time the job") {
  Readers f;
  f.ask(1, 1);
  f.ask(2, 2);
  (void)f.job(f.peer(0));
  f.peer(0).die(SIGSEGV);
  REQUIRE(turn_until(f.loop, [&] { return f.launcher.peers.size() == 2; }));
  CHECK(f.answers.empty());
  (void)f.job(f.peer(1));
  f.peer(1).die(SIGSEGV);
  REQUIRE(f.has_answers({"1: 200"}));
  REQUIRE(turn_until(f.loop, [&] { return f.launcher.peers.size() == 3; }));
  f.serve(f.peer(2));
  CHECK(f.has_answers({"1: 200", "2: 0"}));
  f.ask(1, 1);  // by itself it is tried as any other
  f.serve(f.peer(2));
  CHECK(f.answers.back() == "1: 0");
}

TEST_CASE("who takes too long is ended, and not tried again") {
  CompilerLimits limits;
  limits.job = std::chrono::milliseconds(20);
  Readers f(limits);
  f.ask(1, 1);
  CHECK(f.has_answers({"1: 200"}));
  CHECK(f.peer(0).is_dead);
  SECTION("of the processor's time as well") {
    f.ask(1, 1);
    REQUIRE(f.launcher.peers.size() == 2);
    f.peer(1).die(SIGXCPU);
    CHECK(f.has_answers({"1: 200", "1: 200"}));
    CHECK(f.launcher.peers.size() == 2);
  }
}

TEST_CASE("a process that answers what nobody asked is ended") {
  Readers f;
  f.ask(1, 1);
  const CompilerJob job = f.job(f.peer(0));
  SECTION("of another job") {
    const CompilerAnswer wrong{job.number + 1, 0, 0};
    REQUIRE(proto::send_message(f.peer(0).socket, wrong) == proto::SocketStatus::ok);
  }
  SECTION("of another size") {
    const std::uint32_t wrong = 1;
    REQUIRE(proto::send_message(f.peer(0).socket, wrong) == proto::SocketStatus::ok);
  }
  REQUIRE(turn_until(f.loop, [&] { return f.launcher.peers.size() == 2; }));
  CHECK(f.peer(0).is_dead);
  f.serve(f.peer(1));
  CHECK(f.has_answers({"1: 0"}));
}

TEST_CASE("without a file, or with one that may still change, there was no memory") {
  Readers f;
  f.ask(1, 1);
  f.answer(f.peer(0), f.job(f.peer(0)).number, false);
  f.ask(1, 2);
  f.answer(f.peer(0), f.job(f.peer(0)).number, true, proto::Seal::size);
  CHECK(f.answers == std::vector<std::string>{"1: 2", "1: 2"});
  CHECK(f.compilers.kept() == 0);
}

TEST_CASE("who has gone waits for nothing, and nobody waits for its image") {
  Readers f;
  f.ask(1, 1);
  f.ask(1, 2);
  f.ask(2, 3);
  (void)f.job(f.peer(0));
  f.compilers.drop(1);
  CHECK(f.answers == std::vector<std::string>{"1: 807", "1: 807"});
  REQUIRE(turn_until(f.loop, [&] { return f.launcher.peers.size() == 2; }));
  f.serve(f.peer(1));
  CHECK(f.answers.back() == "2: 0");
}

TEST_CASE("an idle process ends, and the next image has a new one") {
  CompilerLimits limits;
  limits.idle = std::chrono::milliseconds(10);
  Readers f(limits);
  f.compilers.expect(kReader);
  CHECK(f.compilers.processes() == 1);
  REQUIRE(turn_until(f.loop, [&] { return f.compilers.processes() == 0; }));
  f.ask(1, 1);
  REQUIRE(f.launcher.peers.size() == 2);
  f.serve(f.peer(1));
  CHECK(f.answers == std::vector<std::string>{"1: 0"});
}

TEST_CASE("a process that is wanted again soon after its end is kept longer the next time, up to a limit") {
  using namespace std::chrono_literals;
  IdleTimes<int> times(5s, 30s);
  IdleTimes<int>::Clock::time_point now{};
  for (const auto kept : {5s, 10s, 20s, 30s, 30s}) {
    times.note_start(1, now);
    CHECK(times.of(1) == kept);
    CHECK(times.of(2) == 5s);
    times.note_end(1, now += 60s);
    now += 49s;
  }
  times.note_start(2, now);
  CHECK(times.of(1) == 30s);
  times.note_end(1, now);
  times.note_start(1, now + 301s);  // not soon
  CHECK(times.of(1) == 5s);

  CompilerLimits limits;
  limits.idle = 10ms;
  limits.most_idle = 1h;
  Readers f(limits);
  for (std::size_t process = 1; process <= 4; ++process) {
    f.compilers.expect(kReader);
    REQUIRE(f.launcher.peers.size() == process);
    const auto began = std::chrono::steady_clock::now();
    REQUIRE(turn_until(f.loop, [&] { return f.compilers.processes() == 0; }));
    CHECK(std::chrono::steady_clock::now() - began >= 10ms * (1 << (process - 1)));
  }
}

TEST_CASE("where no process can be started an image is refused") {
  Readers f;
  f.launcher.refuses = true;
  f.ask(1, 1);
  CHECK(f.answers == std::vector<std::string>{"1: 2"});
  f.launcher.refuses = false;
  f.ask(1, 1);
  f.ask(2, 2);
  (void)f.job(f.peer(0));
  f.launcher.refuses = true;
  f.peer(0).die(SIGKILL);
  CHECK(f.has_answers({"1: 2", "1: 2", "2: 2"}));
}

TEST_CASE("what is kept has a limit") {
  CompilerLimits limits;
  limits.kept_bytes = 3 * 4096;
  limits.kept = 2;
  Readers f(limits);
  for (std::uint64_t image = 1; image <= 4; ++image) {
    f.ask(1, image);
    f.serve(f.peer(0));
  }
  CHECK(f.compilers.kept() == 2);
}
