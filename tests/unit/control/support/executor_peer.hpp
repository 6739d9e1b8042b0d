// SPDX-License-Identifier: Apache-2.0
// An executor played by the test: the other end of the link, the facts, the progress table, and a death on command. Everything runs in the
// test's one thread: whoever waits turns the broker's loop.
#pragma once

#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cuda.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "broker/call_table.hpp"
#include "broker/control/base/event_loop.hpp"
#include "broker/control/processes/executor_process.hpp"
#include "broker/control_messages.hpp"
#include "broker/progress_table.hpp"
#include "broker/seen_end.hpp"
#include "broker/session_counts.hpp"
#include "proto/device_facts.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/control/support/turns.hpp"

namespace mpsshim::broker::control::testing {

// One life. The broker's half of it went to the ManagedExecutor under test.
class ExecutorPeer {
 public:
  ExecutorPeer(EventLoop& loop, const ExecutorOptions& asked, ExecutorLife& life) : options(asked), loop_(loop) {
    auto ends = proto::Socket::pair();
    socket_ = std::move(ends[0]);
    socket_.set_blocking(false);
    life.link = std::move(ends[1]);
    life.facts = proto::create_memory_file("test-facts", sizeof(proto::DriverFacts));
    facts_ = life.facts.duplicate();
    life.progress = proto::create_memory_file("test-progress", sizeof(ProgressFile));
    life.calls = proto::create_memory_file("test-calls", sizeof(CallTable));
    calls_ = proto::Mapping::map(life.calls, 0, sizeof(CallTable), proto::Access::read_write);
    progress_ = proto::Mapping::map(life.progress, 0, sizeof(ProgressFile), proto::Access::read_write);
    death_ = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC));
    life.pidfd = death_.duplicate();
    static pid_t next_pid = 5000;
    life.pid = pid = next_pid++;
  }

  void send(const OutgoingMessage& message) { REQUIRE(send_bytes(message.bytes(), message.fds())); }
  [[nodiscard]] bool send_bytes(std::span<const std::byte> packet, std::span<const int> fds = {}) {
    return socket_.send(packet, fds) == proto::SocketStatus::ok;
  }
  // All but its last byte.
  void send_torn(const OutgoingMessage& message) { REQUIRE(send_bytes(message.bytes().first(message.bytes().size() - 1))); }
  void ready(CUresult status = CUDA_SUCCESS, std::uint64_t memory_bytes = 1ull << 30) {
    auto facts = std::make_unique<proto::DriverFacts>();
    facts->size_bytes = sizeof *facts;
    facts->driver_version = driver_version;
    facts->device_count = 2;
    for (auto& device : facts->device) {
      device.total_memory_bytes = memory_bytes;
      device.greatest_stream_priority = greatest_priority;
      device.is_cpu_device = is_cpu ? 1 : 0;
      device.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = exclusive ? CU_COMPUTEMODE_EXCLUSIVE_PROCESS : CU_COMPUTEMODE_DEFAULT;
      device.attribute[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = multiprocessors;
    }
    facts->peer[0][1].can_access = facts->peer[1][0].can_access = are_peers ? 1 : 0;
    REQUIRE(pwrite(facts_.get(), facts.get(), sizeof *facts, 0) == static_cast<ssize_t>(sizeof *facts));
    send(message::Ready{.status = static_cast<std::uint32_t>(status), .chunks = {chunks, chunks}});
  }

  // The next message of the broker, which must be this one.
  template <typename Message>
  Received<Message> expect() {
    std::optional<ReceivedMessage> arrived;
    REQUIRE(turn_until(loop_, [&] { return (arrived = receive()).has_value(); }));
    REQUIRE(static_cast<int>(arrived->id()) == static_cast<int>(Message::kId));
    return arrived->take<Message>();
  }
  std::optional<ReceivedMessage> receive() {
    std::array<std::byte, proto::kMaxMessageBytes> buffer;
    std::size_t bytes = 0;
    proto::ReceivedFds fds;
    if (socket_.receive(buffer, bytes, fds) != proto::SocketStatus::ok) return std::nullopt;
    ReceivedMessage arrived;
    REQUIRE(arrived.assign(std::span(buffer).first(bytes), fds, proto::MessageDirection::to_executor) == proto::Misfit::fits);
    return arrived;
  }
  void open_session() { send(message::SessionOpened{.session = expect<message::SessionOpen>().message.session}); }

  // Kernels all. `ended`: how long ago the watch saw the last of it end.
  void set_progress(std::size_t stream, std::uint64_t session, std::uint32_t issued, std::uint32_t completed, ProgressTick ended = 10 * kLateEnd) {
    auto& row = reinterpret_cast<ProgressTable*>(progress_.data())->stream[stream];
    row.session = session;
    row.issued = issued;
    row.completed = completed;
    row.kinds = WorkKind::kernel;
    row.launches = 1;
    row.launched = issued;
    note_end(row, completed, progress_tick() - ended);
    note_work(row, issued != completed, progress_tick() - 20 * kLateEnd);
  }
  // Copies all, and no kernel.
  void set_copies(std::size_t stream, std::uint64_t session, std::uint32_t issued, std::uint32_t completed) {
    set_progress(stream, session, issued, completed);
    auto& row = reinterpret_cast<ProgressTable*>(progress_.data())->stream[stream];
    row.kinds = WorkKind::memory;
    row.launches = row.launched = 0;
    row.touched = issued;
  }
  // The row that all lives share.
  SessionCounts& counts(std::uint64_t session) {
    if (!counts_) {
      const proto::FileDescriptor file(fcntl(options.counts_file, F_DUPFD_CLOEXEC, 3));
      counts_ = proto::Mapping::map(file, 0, sizeof(SessionCountsFile), proto::Access::read_write);
      REQUIRE(counts_);
    }
    SessionCountsFile& file = *reinterpret_cast<SessionCountsFile*>(counts_.data());
    const std::uint32_t row = SessionCountsView(&file).index_of(session);
    REQUIRE(row != 0);
    return file.row[row];
  }
  // The stream goes back to the pool.
  void leave(std::size_t stream) {
    auto& row = reinterpret_cast<ProgressTable*>(progress_.data())->stream[stream];
    note_former(row, progress_tick());
    row.session = 0;
  }
  // A thread of it is in that call of that session; `signal`: and crashes there.
  void set_call(std::size_t thread, const PublishedCall& call, std::uint32_t signal = 0) {
    auto& slot = reinterpret_cast<CallTable*>(calls_.data())->slot[thread];
    slot.call = call.packed();
    ++slot.count;
    slot.signal = signal;
  }
  void report_fault(CUresult error, std::uint64_t session = 0) {
    message::Fault fault{.session = session, .tick = progress_tick(), .status = static_cast<std::uint32_t>(error)};
    set_text(fault.text, "cuStreamQuery failed");
    send(fault);
  }
  void die() {
    if (dead) return;
    dead = true;
    socket_.reset();
    const std::uint64_t one = 1;
    REQUIRE(write(death_.get(), &one, sizeof one) == sizeof one);
  }

  const ExecutorOptions options;
  pid_t pid = -1;
  bool dead = false, killed = false, halted = false, stands_still = true;  // the last when it is halted
  bool exclusive = false, is_cpu = false, are_peers = true;                // compute mode of its devices; the CPU driver's; the two devices
  int driver_version = 13'000;
  unsigned chunks = 10;        // that each device is cut into
  int multiprocessors = 0;     // of each device
  int greatest_priority = -5;  // of streams; the least is 0

 private:
  EventLoop& loop_;
  proto::Socket socket_;
  proto::FileDescriptor facts_;
  proto::FileDescriptor death_;
  proto::Mapping progress_;
  proto::Mapping calls_;
  proto::Mapping counts_;
};

}  // namespace mpsshim::broker::control::testing
