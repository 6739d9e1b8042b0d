// SPDX-License-Identifier: Apache-2.0
// Two clients in the first of several executors, of which one waits for the other's kernel without end: what is moved, and what is not.
#pragma once

#include <memory>
#include <string>

#include "broker/control/server/commands.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

namespace mpsshim::broker::control::testing {

// Two clients in the first executor: one runs a kernel without end on stream 0, the other's call waits for it.
struct Starving : ControlFixture {
  explicit Starving(SessionLimits limits = ControlFixture::limits_with(2)) : ControlFixture(limits) {
    serve();
    endless = std::make_unique<TestClient>(attach(&blocker));
    waiting = std::make_unique<TestClient>(attach(&starved));
    page = map_header(waiting->fds);
    first().set_progress(0, blocker.session, 1, 0);
    first().set_progress(1, starved.session, 7, 7);
  }
  ExecutorPeer& first() { return *launcher.lives.at(0); }
  ExecutorPeer& second() { return *launcher.lives.at(1); }
  void starve(std::uint32_t flags = 0) {
    message::Starved packet{.session = starved.session, .blocker = blocker.session, .flags = flags};
    set_text(packet.text, "cuModuleLoadData");
    first().send(packet);
  }
  // The order to pause the starving session has come; it is answered.
  message::SessionPause expect_pause() {
    order = first().expect<message::SessionPause>().message;
    REQUIRE(order.session == starved.session);
    return order;
  }
  void answer_pause(CUresult status = CUDA_SUCCESS) {
    first().send(
        message::SessionPaused{.session = starved.session, .order = order.order, .flags = order.flags, .status = static_cast<std::uint32_t>(status)});
  }
  // Whether its variables are where they were, after the loads.
  void answer_check(CUresult status = CUDA_SUCCESS) {
    const std::uint64_t check = second().expect<message::VariablesCheck>().message.order;
    second().send(message::VariablesChecked{.session = starved.session, .order = check, .status = static_cast<std::uint32_t>(status)});
  }
  // The second executor is ready and the starving session has left the first.
  void move() {
    starve();
    REQUIRE(turn_until(loop, [&] { return launcher.lives.size() == 2; }));
    second().ready();
    expect_pause();
    answer_pause();
    REQUIRE(first().expect<message::SessionClose>().message.session == starved.session);
  }
  [[nodiscard]] bool stays() {
    return first().expect<message::Stay>().message.session == starved.session && header_of(page).session_state == kActive;
  }
  std::string command(const std::string& line) {
    std::string text;
    Commands(manager, nullptr).execute(line, [&](const Commands::Result& result) { text = result.text; });
    return text;
  }

  message::SessionPause order;
  proto::Attached blocker, starved;
  std::unique_ptr<TestClient> endless, waiting;
  proto::Mapping page;
};

inline void add_chunk(Starving& broker, ExecutorPeer& executor, std::uint64_t address) {
  const proto::FileDescriptor file = proto::create_memory_file("test-chunk", 4096);
  executor.send({message::ChunkCreated{.session = broker.starved.session, .chunk = address, .size_bytes = 4096}, {.handle = file.get()}});
}

}  // namespace mpsshim::broker::control::testing
