// SPDX-License-Identifier: Apache-2.0
// A control process without its listening sockets: loop, SessionManager, executors played by the test, and clients (test_client.hpp) at
// the other end of a socket pair.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

#include "broker/control/manager/session_manager.hpp"
#include "broker/control/server/client_connection.hpp"
#include "proto/client_requests.hpp"
#include "tests/unit/control/support/peer_launcher.hpp"
#include "tests/unit/control/support/test_client.hpp"
#include "tests/unit/control/support/turns.hpp"

namespace mpsshim::broker::control::testing {

class ControlFixture {
 public:
  explicit ControlFixture(SessionLimits limits = quick_limits(), std::vector<std::string> drivers = {"libtest.so"})
      : ControlFixture(limits, settings(std::move(drivers))) {}
  ControlFixture(SessionLimits limits, const ExecutorSettings& executors)
      : launcher(loop),
        manager(loop, launcher, executors, limits,
                {.facts_published =
                     [this] {
                       for (auto& connection : connections_)
                         if (connection) connection->facts_published();
                     },
                 .cannot_start = [this](const std::string& why) { cannot_start = why; },
                 .stopped = [this] { stopped = true; }}) {
    manager.start();
  }
  static SessionLimits quick_limits() {
    SessionLimits limits;
    limits.orphan = std::chrono::milliseconds(30);
    limits.drain = std::chrono::milliseconds(40);
    limits.answer = std::chrono::milliseconds(400);
    limits.trial = std::chrono::milliseconds(0);  // trials.cpp has some
    return limits;
  }
  static SessionLimits limits_with(unsigned executors, int idle_ms = 10'000) {
    SessionLimits limits = quick_limits();
    limits.answer = std::chrono::milliseconds(2000);
    limits.pause = std::chrono::milliseconds(60);
    limits.pool.executors = executors;
    limits.pool.idle = std::chrono::milliseconds(idle_ms);
    return limits;
  }
  static ExecutorSettings settings(std::vector<std::string> drivers) {
    ExecutorSettings settings;
    settings.drivers = std::move(drivers);
    settings.retry_delay = std::chrono::milliseconds(100);
    settings.standby = StandbyKind::none;
    return settings;
  }

  void serve() {
    executor().ready();
    REQUIRE(turn_until(loop, [&] { return manager.facts_file() >= 0 && manager.executors().at({0, 0})->state() == ExecutorState::active; }));
  }
  ExecutorPeer& executor() { return launcher.last(); }

  // This thread alone: the control process's others have given up the right to.
  static bool become(uid_t user) { return syscall(SYS_setresuid, -1, user, -1) == 0; }
  // `user`: who the client is of (root alone can say so); 0: this process's own.
  TestClient connect(uid_t user = 0) {
    if (user != 0) REQUIRE(become(user));  // the kernel notes it as the peer's
    auto ends = proto::Socket::pair();
    if (user != 0) REQUIRE(become(0));
    ends[1].set_blocking(false);
    const std::size_t place = connections_.size();
    connections_.push_back(std::make_unique<ClientConnection>(loop, manager, closer, std::move(ends[1]), "",
                                                              [this, place] { loop.defer([this, place] { connections_[place].reset(); }); }));
    return TestClient(loop, std::move(ends[0]));
  }
  // A client with a session that is open in the current executor.
  TestClient attach(proto::Attached* answer = nullptr) { return attach_to(executor(), answer); }
  // The same where the last life is a standby's.
  TestClient attach_to(ExecutorPeer& serving, proto::Attached* answer = nullptr) {
    TestClient client = connect();
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    client.send(proto::Attach{});
    serving.open_session();
    const auto attached = client.await<proto::Attached>();
    REQUIRE(attached.header.status == CUDA_SUCCESS);
    REQUIRE(client.fds.count == 4);
    if (answer != nullptr) *answer = attached;
    return client;
  }
  // Waits for the next life and has it report that it is ready.
  ExecutorPeer& next_life(std::size_t lives) {
    REQUIRE(turn_until(loop, [&] { return launcher.lives.size() == lives; }));
    executor().ready();
    REQUIRE(turn_until(loop, [&] { return manager.executors().at({0, 0})->state() == ExecutorState::active; }));
    return executor();
  }
  // An image of the client's that `peer` says it has loaded; its number.
  std::uint64_t load_image(ExecutorPeer& peer, TestClient& client, const std::string& content, std::uint32_t flags = 0);
  // A chunk of that session, as the executor that serves makes it.
  void create_chunk(std::uint64_t session_id, std::uint64_t address, std::string_view content);
  const ClientSession& session(std::uint64_t id) { return manager.sessions().at(id); }
  bool has_session(std::uint64_t id) { return manager.sessions().contains(id); }

  EventLoop loop;
  Closer closer{loop};
  PeerLauncher launcher;
  SessionManager manager;
  std::string cannot_start;
  bool stopped = false;

 private:
  std::vector<std::unique_ptr<ClientConnection>> connections_;
};

inline void ControlFixture::create_chunk(std::uint64_t session_id, std::uint64_t address, std::string_view content) {
  const proto::FileDescriptor file = proto::create_memory_file("test-chunk", 4096);
  REQUIRE(pwrite(file.get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  executor().send({message::ChunkCreated{.session = session_id, .chunk = address, .size_bytes = 4096}, {.handle = file.get()}});
  REQUIRE(turn_until(loop, [&] { return session(session_id).chunks.all().contains(address); }));
}

inline std::uint64_t ControlFixture::load_image(ExecutorPeer& peer, TestClient& client, const std::string& content, std::uint32_t flags) {
  proto::ImageOpen open;
  open.size_bytes = content.size();
  const auto opened = client.ask<proto::ImageOpened>(open);
  REQUIRE(pwrite(client.fds.fds[0].get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  proto::ImageSeal seal;
  seal.image = opened.image;
  const message::ModuleNote note{.object = client.ask<proto::Done>(seal).image, .kind = LogKind::load, .flags = flags};
  const std::size_t before = manager.images().log().size();
  peer.send(note);
  REQUIRE(turn_until(loop, [&] { return manager.images().log().size() == before + 1; }));
  return note.object;
}

}  // namespace mpsshim::broker::control::testing
