// SPDX-License-Identifier: Apache-2.0
// A control process with two devices, whose executors the test plays; the second one begins with its first client.
#pragma once

#include "tests/unit/control/support/control_fixture.hpp"

namespace mpsshim::broker::control::testing {

// Some process, which need not be there.
inline ClientIdentity process(pid_t pid, uid_t uid = 1000) {
  ClientIdentity client;
  client.pid = pid;
  client.uid = uid;
  return client;
}

struct TwoDevices : ControlFixture {
  explicit TwoDevices(bool are_peers = true, const SessionLimits& limits = quick_limits()) : ControlFixture(limits) {
    executor().are_peers = are_peers;
    executor().ready(CUDA_SUCCESS, 141ull << 30);
    REQUIRE(turn_until(loop, [&] { return manager.facts_file() >= 0; }));
  }
  ExecutorPeer& of(unsigned device) { return *launcher.lives.at(device); }
  TestClient attach_on(unsigned device, proto::Attached& answer) {
    TestClient client = connect();
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    proto::Attach attach;
    attach.device = device;
    client.send(attach);
    if (device == 1 && launcher.lives.size() == 1) {
      REQUIRE(turn_until(loop, [&] { return launcher.lives.size() == 2; }));
      of(1).ready(CUDA_SUCCESS, 141ull << 30);
    }
    of(device).open_session();
    answer = client.await<proto::Attached>();
    REQUIRE(answer.header.status == CUDA_SUCCESS);
    return client;
  }
  void end(TestClient& client, unsigned device, std::uint64_t session_id) {
    client.hang_up();
    while (of(device).expect<message::SessionClose>().message.session != session_id) {
    }
    of(device).send(message::SessionClosed{.session = session_id});
    REQUIRE(turn_until(loop, [&] { return !has_session(session_id); }));
  }
};

}  // namespace mpsshim::broker::control::testing
