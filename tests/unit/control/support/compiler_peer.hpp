// SPDX-License-Identifier: Apache-2.0
// Compiler processes that the test plays itself, and Compilers that have their images read there.
#pragma once

#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

#include "broker/compiler/compiler_messages.hpp"
#include "broker/control/images/compilers.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/control/support/turns.hpp"

namespace mpsshim::broker::control::testing {

inline constexpr uid_t kReader = 1000;

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

}  // namespace mpsshim::broker::control::testing
