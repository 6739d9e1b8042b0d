// SPDX-License-Identifier: Apache-2.0
// Who has which image read by whom, with compiler processes that the test plays itself.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/compiler/compiler_messages.hpp"
#include "broker/control/images/compilers.hpp"
#include "broker/control/processes/executor_process.hpp"
#include "tests/unit/control/support/executor_peer.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr uid_t kReader = 1000;

struct CompilerPeer {
  proto::Socket socket;
  proto::FileDescriptor death;
  CompilerEnd end{0, "ended with status 0"};
  bool is_dead = false;
  std::chrono::nanoseconds used{0};  // of the processor's time

  void die(int signal) {
    end = {signal, "was ended by signal " + std::to_string(signal)};
    is_dead = true;
    const std::uint64_t one = 1;
    REQUIRE(write(death.get(), &one, sizeof one) == sizeof one);
    socket.reset();
  }
};

class PeerCompilers final : public CompilerLauncher {
 public:
  std::optional<CompilerLife> launch(unsigned device) override {
    if (refuses) return std::nullopt;
    devices.push_back(device);
    auto ends = proto::Socket::pair();
    auto& peer = *peers.emplace_back(std::make_unique<CompilerPeer>());
    peer.socket = std::move(ends[0]);
    peer.socket.set_blocking(false);
    peer.death = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC));
    CompilerLife life;
    life.pid = static_cast<pid_t>(peers.size());
    life.pidfd = peer.death.duplicate();
    life.link = std::move(ends[1]);
    return life;
  }
  void kill(const CompilerLife& life) override {
    CompilerPeer& peer = *peers.at(static_cast<std::size_t>(life.pid) - 1);
    if (!peer.is_dead) peer.die(SIGKILL);
  }
  std::chrono::nanoseconds processor_time(const CompilerLife& life) override { return peers.at(static_cast<std::size_t>(life.pid) - 1)->used; }
  CompilerEnd reap(const CompilerLife& life) override { return peers.at(static_cast<std::size_t>(life.pid) - 1)->end; }

  bool refuses = false;
  std::vector<unsigned> devices;
  std::vector<std::unique_ptr<CompilerPeer>> peers;
};

struct Readers {
  std::vector<std::string> answers;  // "SESSION: STATUS"
  EventLoop loop;
  PeerCompilers launcher;
  ProcessorShares shares;
  Compilers compilers;
  proto::FileDescriptor file = proto::create_memory_file("test-image", 4096);

  explicit Readers(const CompilerLimits& limits = {}, const CompilerTrade& trade = trade_of_readers(),
                   std::chrono::seconds user_minute = std::chrono::seconds(30))
      : shares(user_minute), compilers(loop, launcher, shares, limits, trade) {}

  void ask(std::uint64_t session, std::uint64_t image, uid_t uid = kReader, unsigned device = 0) { ask_of(compilers, session, image, uid, device); }
  void ask_of(Compilers& whom, std::uint64_t session, std::uint64_t image, uid_t uid = kReader, unsigned device = 0) {
    whom.prepare({uid, image, false, 90, 0, device}, file.get(), {session, "Session " + std::to_string(session)},
                      [this, session](CUresult status, const std::string&, int prepared) {
                        CHECK((status == CUDA_SUCCESS) == (prepared >= 0));
                        answers.push_back(std::to_string(session) + ": " + std::to_string(status));
                      });
  }
  CompilerPeer& peer(std::size_t number) { return *launcher.peers.at(number); }
  CompilerJob job(CompilerPeer& of) {
    CompilerJob job;
    proto::ReceivedFds fds;
    REQUIRE(turn_until(loop, [&] {
      std::size_t bytes = 0;
      return of.socket.receive(std::as_writable_bytes(std::span(&job, 1)), bytes, fds) == proto::SocketStatus::ok && bytes == sizeof job;
    }));
    CHECK(fds.count == 1);
    return job;
  }
  void answer(CompilerPeer& of, std::uint64_t number, bool with_file = true, proto::Seal seal = proto::Seal::content,
              CUresult status = CUDA_SUCCESS) {
    const std::size_t before = answers.size();
    const CompilerAnswer answer{number, static_cast<std::uint32_t>(status), 0};
    const proto::FileDescriptor prepared = proto::create_memory_file("test-prepared", 4096);
    REQUIRE(proto::seal(prepared, seal));
    const int fd = prepared.get();
    REQUIRE(proto::send_message(of.socket, answer, std::span(&fd, with_file ? 1 : 0)) == proto::SocketStatus::ok);
    REQUIRE(turn_until(loop, [&] { return answers.size() > before; }));
  }
  void serve(CompilerPeer& by) { answer(by, job(by).number); }
  [[nodiscard]] static bool has_job(CompilerPeer& of) {
    CompilerJob job;
    std::size_t bytes = 0;
    proto::ReceivedFds fds;
    return of.socket.receive(std::as_writable_bytes(std::span(&job, 1)), bytes, fds) == proto::SocketStatus::ok;
  }
  bool has_answers(std::vector<std::string> expected) {
    return turn_until(loop, [&] { return answers.size() >= expected.size(); }) && answers == expected;
  }
};

}  // namespace

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
