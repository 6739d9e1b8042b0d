// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/support/control_stage.hpp"

#include <array>
#include <chrono>
#include <cstring>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "broker/log.hpp"
#include "broker/progress_table.hpp"
#include "proto/device_facts.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"

namespace mpsshim::fuzz {

using namespace broker;
using namespace broker::control;

std::optional<ExecutorLife> ObligingExecutor::launch(const ExecutorOptions&) {
  ExecutorLife life;
  auto ends = proto::Socket::pair();
  socket_ = std::move(ends[0]);
  socket_.set_blocking(false);
  life.link = std::move(ends[1]);
  life.facts = proto::create_memory_file("facts", sizeof(proto::DriverFacts));
  facts_ = life.facts.duplicate();
  life.progress = proto::create_memory_file("progress", sizeof(ProgressTable));
  death_ = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC));
  life.pidfd = death_.duplicate();
  life.pid = 5000;
  open_.clear();
  return life;
}

void ObligingExecutor::kill(const ExecutorLife&) {
  socket_.reset();
  eventfd_write(death_.get(), 1);
}

void ObligingExecutor::ready() {
  auto facts = std::make_unique<proto::DriverFacts>();
  facts->size_bytes = sizeof *facts;
  facts->driver_version = 13000;
  facts->device_count = 1;  // this launcher has one executor at a time
  facts->peer[0][0].can_access = 1;  // as if it were two: all clients are one process
  for (auto& device : facts->device) {
    device.total_memory_bytes = 100ull << 30;
    device.is_cpu_device = 1;  // which takes memory files as external memory
  }
  require(pwrite(facts_.get(), facts.get(), sizeof *facts, 0) == static_cast<ssize_t>(sizeof *facts), "facts cannot be written");
  send(message::Ready{});
}

void ObligingExecutor::send(const OutgoingMessage& message) { (void)socket_.send(message.bytes(), message.fds()); }

bool ObligingExecutor::serve() {
  bool any = false;
  std::array<std::byte, kMaxExecutorPacketBytes> packet;
  std::size_t bytes = 0;
  for (proto::ReceivedFds fds; socket_.valid() && socket_.receive(packet, bytes, fds) == proto::SocketStatus::ok; fds = {}) {
    any = true;
    ReceivedMessage received;
    const proto::Misfit misfit = received.assign(std::span(packet).first(bytes), fds, proto::MessageDirection::to_executor);
    require(misfit == proto::Misfit::fits, "an executor is sent what is no message of its");
    take(received);
  }
  return any;
}

void ObligingExecutor::take(ReceivedMessage& received) {
  const std::uint64_t session = received.session();
  if (received.is<message::SessionOpen>()) {
    // What the executor relies on: whoever it is told of is new.
    require(open_.insert(session).second, "a session is opened twice");
    send(message::SessionOpened{.session = session});
  } else if (received.is<message::SessionClose>()) {
    require(open_.erase(session) == 1, "a session is closed that is not open");
    send(message::SessionClosed{.session = session});
  } else if (received.is<message::SegmentAdd>() || received.is<message::LeaseAdd>()) {
    require(open_.contains(session), "memory is announced for a session that is not open");  // known before its client has the answer, and only there
  } else if (received.is<message::PieceAdd>()) {
    const auto [added, fds] = received.take<message::PieceAdd>();
    require(open_.contains(session), "memory is handed over for nobody");
    require(fcntl(fds.handle.get(), F_GET_SEALS) >= 0, "what is handed over as memory is no memory file");
    if (added.memory % 2 == 0) send(message::PieceTaken{.session = session, .memory = added.memory});
  }
}

ControlStage::ControlStage()
    : manager_(
          loop_, executor_,
          [] {
            ExecutorSettings settings;
            settings.drivers = {"libtest.so"};
            settings.standby = StandbyKind::none;
            return settings;
          }(),
          [] {
            SessionLimits limits;
            limits.orphan = std::chrono::milliseconds(0);
            return limits;
          }(),
          {.facts_published = [] {}, .cannot_start = [](const std::string&) { require(false, "no driver serves"); }, .stopped = [] {}}) {
  (void)open_log({.path = "", .identity = "Fuzz", .to_standard_error = false, .least = LogLevel::error});
  manager_.start();
  executor_.ready();
  while (manager_.facts_file() < 0) loop_.turn(1);
}

proto::Socket ControlStage::connect() {
  auto ends = proto::Socket::pair();
  ends[0].set_blocking(false);
  ends[1].set_blocking(false);
  const std::uint64_t id = next_connection_++;
  const auto forget = [this, id] {
    auto remains = connections_.at(id)->take_remains();
    connections_.erase(id);
    ++closing_;
    disposal_.dispose(std::move(remains), [this] { --closing_; });
  };
  connections_.emplace(
      id, std::make_unique<ClientConnection>(loop_, manager_, disposal_.files(), std::move(ends[1]), "", [this, forget] { loop_.defer(forget); }));
  return std::move(ends[0]);
}

void ControlStage::settle() {
  constexpr int kQuietTurns = 2;
  for (int quiet = 0; quiet < kQuietTurns;) {
    quiet = turn(0) ? 0 : quiet + 1;
  }
}

void ControlStage::await_end() {
  constexpr std::chrono::seconds kPatience{20};  // a closer's thread may have to wait for its turn
  const auto until = std::chrono::steady_clock::now() + kPatience;
  settle();
  const auto is_left = [this] {
    return !connections_.empty() || closing_ != 0 || disposal_.sockets().pending() != 0 || disposal_.files().pending() != 0 ||
           manager_.faults().programs().pending() != 0 || !manager_.sessions().empty() || manager_.images().count() != 0;
  };
  while (is_left()) {
    require(std::chrono::steady_clock::now() < until, "something is left of clients that have hung up");
    (void)turn(1);
  }
}

bool ControlStage::turn(int timeout_ms) {
  loop_.turn(timeout_ms);
  return executor_.serve();
}

}  // namespace mpsshim::fuzz
