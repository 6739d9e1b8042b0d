// SPDX-License-Identifier: Apache-2.0
// Sessions of one process on two devices, of which one is to reach the other's memory.
#include <set>
#include <vector>

#include "proto/ids.hpp"
#include "tests/unit/control/support/two_devices.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

proto::PeerLeased ask(TestClient& client, std::uint64_t address) {
  proto::PeerLease request;
  request.address = address;
  return client.ask<proto::PeerLeased>(request);
}

// Further ranges of a size that few have, until there are none.
std::set<std::uint64_t> take_all(std::vector<TestClient>& clients) {
  std::set<std::uint64_t> taken;
  proto::LeaseAdd request;
  request.size_bytes = 40ull << 30;
  for (TestClient& client : clients) {
    for (;;) {
      const auto added = client.ask<proto::LeaseAdded>(request);
      if (added.header.status != CUDA_SUCCESS) break;
      REQUIRE(taken.insert(added.lease.address).second);
    }
  }
  return taken;
}

}  // namespace

TEST_CASE("a range of another session of the process: announced once, to the executor that is to reach it, and to its next life") {
  TwoDevices broker;
  proto::Attached owner, other;
  TestClient a = broker.attach_on(0, owner), b = broker.attach_on(1, other);
  const auto given = ask(b, owner.device_lease.address + (5u << 20));
  REQUIRE(given.header.status == CUDA_SUCCESS);
  CHECK(same_range(given.lease, owner.device_lease));
  const auto announced = broker.of(1).expect<message::LeaseAdd>().message;
  CHECK(announced.session == other.session);
  CHECK(announced.is_peers == 1);
  CHECK(same_range(announced.lease, owner.device_lease));
  CHECK(same_range(ask(b, owner.device_lease.address).lease, owner.device_lease));
  CHECK_FALSE(broker.of(1).receive());

  broker.of(1).die();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  ExecutorPeer& next = broker.executor();
  next.ready(CUDA_SUCCESS, 141ull << 30);
  proto::Attach again;
  again.device = 1;
  b.send(again);
  const auto restored = next.expect<message::LeaseRestore>().message;
  CHECK(restored.is_peers == 1);
  CHECK(same_range(restored.lease, owner.device_lease));
  next.open_session();
  REQUIRE(b.await<proto::Attached>().header.status == CUDA_SUCCESS);
  next.send(message::LeaseReleased{.session = other.session, .address = owner.device_lease.address});
  CHECK(turn_until(broker.loop, [&] { return broker.session(other.session).peer_leases.empty(); }));
  CHECK(same_range(broker.session(owner.session).device_lease, owner.device_lease));
}

TEST_CASE("nobody gets a session's range from another process, its own as another's, where there is none, or where the hardware cannot") {
  const bool are_peers = GENERATE(true, false);
  TwoDevices broker(are_peers);
  proto::Attached owner, other;
  TestClient a = broker.attach_on(0, owner), b = broker.attach_on(1, other);
  const std::uint64_t address = owner.device_lease.address;
  CHECK(ask(b, address).header.status == (are_peers ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
  if (are_peers) (void)broker.of(1).expect<message::LeaseAdd>();
  CHECK(ask(b, other.device_lease.address).header.status == CUDA_ERROR_INVALID_VALUE);
  CHECK(ask(b, address - 1).header.status == CUDA_ERROR_INVALID_VALUE);
  CHECK(ask(b, owner.device_lease.address + owner.device_lease.size_bytes).header.status == CUDA_ERROR_INVALID_VALUE);
  CHECK(ask(b, owner.pinned_lease.address).header.status == CUDA_ERROR_INVALID_VALUE);
  CHECK(ask(b, 0).header.status == CUDA_ERROR_INVALID_VALUE);
  CHECK(ask(b, UINT64_MAX).header.status == CUDA_ERROR_INVALID_VALUE);
  ClientIdentity& identity = broker.manager.find(owner.session)->client;
  const ClientIdentity before = identity;
  identity.pid = before.pid + 1;
  CHECK(ask(b, address).header.status == CUDA_ERROR_INVALID_VALUE);
  identity.pid = 0;  // of another namespace: nobody knows
  broker.manager.find(other.session)->client.pid = 0;
  CHECK(ask(b, address).header.status == CUDA_ERROR_INVALID_VALUE);
  identity = before;
  identity.uid = before.uid + 1;
  broker.manager.find(other.session)->client.pid = before.pid;
  CHECK(ask(b, address).header.status == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(broker.of(1).receive());
}

TEST_CASE("a range that two sessions hold is nobody else's before both have let it go, whichever ends first") {
  const bool owner_first = GENERATE(true, false);
  TwoDevices broker;
  proto::Attached owner, other;
  TestClient a = broker.attach_on(0, owner), b = broker.attach_on(1, other);
  std::vector<TestClient> others;
  std::vector<proto::Attached> answers(6);
  for (proto::Attached& answer : answers) {
    others.push_back(broker.attach_on(0, answer));
    broker.manager.find(answer.session)->client.pid = static_cast<pid_t>(10'000'000 + answer.session);  // a process has not so many
  }
  REQUIRE(ask(b, owner.device_lease.address).header.status == CUDA_SUCCESS);
  if (owner_first) {
    broker.end(a, 0, owner.session);
  } else {
    (void)broker.of(1).expect<message::LeaseAdd>();
    broker.end(b, 1, other.session);
  }
  const std::set<std::uint64_t> taken = take_all(others);
  CHECK(taken.size() > 40);
  CHECK_FALSE(taken.contains(owner.device_lease.address));
  CHECK(taken.contains(other.device_lease.address) == !owner_first);
  if (owner_first) {
    (void)broker.of(1).expect<message::LeaseAdd>();
    broker.end(b, 1, other.session);
  } else {
    while (broker.of(0).receive()) {
    }
    a.hang_up();
    (void)broker.of(0).expect<message::SessionClose>();
    broker.of(0).send(message::SessionClosed{.session = owner.session});
    REQUIRE(turn_until(broker.loop, [&] { return !broker.has_session(owner.session); }));
  }
  CHECK(take_all(others).contains(owner.device_lease.address));
  CHECK(take_all(others).empty());
}

TEST_CASE("a process has a session on each of many devices, and not many on one") {
  TwoDevices broker;
  std::vector<TestClient> clients;
  proto::Attached answer;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(broker.attach_on(0, answer));
    clients.push_back(broker.attach_on(1, answer));
  }
  TestClient one_more = broker.connect();
  REQUIRE(one_more.hello().header.status == CUDA_SUCCESS);
  CHECK(one_more.ask<proto::Attached>(proto::Attach{}).header.status == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
}

TEST_CASE("memory of another device is opened by its name where the hardware lets it be reached, but for other interfaces") {
  const bool are_peers = GENERATE(true, false);
  TwoDevices broker(are_peers);
  proto::Attached owner, other;
  TestClient a = broker.attach_on(0, owner), b = broker.attach_on(1, other);
  const proto::FileDescriptor file = proto::create_memory_file("test-chunk", 4096);
  broker.of(0).send(
      {message::ChunkCreated{.session = owner.session, .chunk = owner.device_lease.address, .size_bytes = 4096}, {.handle = file.get()}});
  REQUIRE(turn_until(broker.loop, [&] { return !broker.session(owner.session).chunks.all().empty(); }));
  proto::MemoryShare share;
  share.object = owner.device_lease.address;
  const auto shared = a.ask<proto::MemoryShared>(share);
  REQUIRE(shared.header.status == CUDA_SUCCESS);
  proto::MemoryOpen open;
  open.name = shared.name;
  open.memory = proto::MemoryId::make(7, 1).value;
  const auto opened = b.ask<proto::MemoryOpened>(open);
  REQUIRE(opened.header.status == (are_peers ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
  open.memory = proto::ExternalMemoryId::make(7, 1).value;
  CHECK(b.ask<proto::MemoryOpened>(open).header.status == CUDA_ERROR_NOT_SUPPORTED);
  if (!are_peers) return;
  CHECK(opened.size_bytes == 4096);
  CHECK(opened.is_own == 1);
  CHECK(opened.device == 1);  // 1 + device 0
  const auto piece = broker.of(1).expect<message::PieceAdd>();
  CHECK(piece.message.session == other.session);
  CHECK(piece.fds.handle.valid());
}
