// SPDX-License-Identifier: Apache-2.0
// Pinned memory of one session of a process, which another one's device is to reach.
#include "tests/unit/control/support/two_devices.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr std::uint64_t kBytes = 3 * proto::kPageBytes;

proto::SegmentCreated make_pinned(TestClient& client, std::uint64_t address, std::uint64_t size_bytes = kBytes) {
  proto::SegmentCreate request;
  request.purpose = proto::SegmentPurpose::pinned;
  request.size_bytes = size_bytes;
  request.address = address;
  return client.ask<proto::SegmentCreated>(request);
}

proto::SegmentCreated open_pinned(TestClient& client, std::uint64_t address) {
  proto::PeerSegment request;
  request.address = address;
  return client.ask<proto::SegmentCreated>(request);
}

}  // namespace

TEST_CASE("peer segments: the same file at the same address, announced to the executor of the other device and to its next life") {
  TwoDevices broker;
  proto::Attached owner, other;
  TestClient a = broker.attach_on(0, owner), b = broker.attach_on(1, other);
  const std::uint64_t address = owner.pinned_lease.address + proto::kPageBytes;
  const auto made = make_pinned(a, address);
  REQUIRE(made.header.status == CUDA_SUCCESS);
  const auto opened = open_pinned(b, address);
  REQUIRE(opened.header.status == CUDA_SUCCESS);
  CHECK(opened.segment != made.segment);
  const auto announced = broker.of(1).expect<message::SegmentAdd>().message;
  CHECK(announced.session == other.session);
  CHECK(announced.segment == opened.segment);
  CHECK(announced.address == address);
  CHECK(announced.size_bytes == kBytes);
  // It is the owner's memory.
  CHECK(broker.session(owner.session).segments.total_bytes() == kBytes);
  CHECK(broker.session(other.session).segments.total_bytes() == 0);
  CHECK(open_pinned(b, address).header.status == CUDA_ERROR_INVALID_VALUE);  // twice

  broker.of(1).die();
  REQUIRE(turn_until(broker.loop, [&] { return broker.launcher.lives.size() == 3; }));
  ExecutorPeer& next = broker.executor();
  next.ready(CUDA_SUCCESS, 141ull << 30);
  proto::Attach again;
  again.device = 1;
  b.send(again);
  const auto restored = next.expect<message::SegmentRestore>().message;
  CHECK(restored.segment == opened.segment);
  CHECK(restored.address == address);
  next.open_session();
  REQUIRE(b.await<proto::Attached>().header.status == CUDA_SUCCESS);
  next.send(message::SegmentReleased{.session = other.session, .segment = opened.segment});
  CHECK(turn_until(broker.loop, [&] { return broker.session(other.session).segments.all().empty(); }));
  CHECK(broker.session(other.session).segments.total_bytes() == 0);
  CHECK(broker.session(owner.session).segments.total_bytes() == kBytes);
}

TEST_CASE("peer segments: nobody gets another process's, its own, one of another purpose, or one that is not there") {
  TwoDevices broker;
  proto::Attached owner, other;
  TestClient a = broker.attach_on(0, owner), b = broker.attach_on(1, other);
  const std::uint64_t address = owner.pinned_lease.address;
  REQUIRE(make_pinned(a, address).header.status == CUDA_SUCCESS);
  (void)broker.of(0).expect<message::SegmentAdd>();
  proto::SegmentCreate staging;
  staging.purpose = proto::SegmentPurpose::staging;
  staging.size_bytes = kBytes;
  REQUIRE(a.ask<proto::SegmentCreated>(staging).header.status == CUDA_SUCCESS);
  (void)broker.of(0).expect<message::SegmentAdd>();
  for (const std::uint64_t wrong :
       {std::uint64_t{0}, address + proto::kPageBytes, address - proto::kPageBytes, owner.device_lease.address, UINT64_MAX}) {
    CHECK(open_pinned(b, wrong).header.status == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(open_pinned(a, address).header.status == CUDA_ERROR_INVALID_VALUE);
  ClientIdentity& identity = broker.manager.find(owner.session)->client;
  const ClientIdentity before = identity;
  identity.pid = before.pid + 1;
  CHECK(open_pinned(b, address).header.status == CUDA_ERROR_INVALID_VALUE);
  identity.pid = before.pid;
  identity.uid = before.uid + 1;
  CHECK(open_pinned(b, address).header.status == CUDA_ERROR_INVALID_VALUE);
  identity = before;
  CHECK_FALSE(broker.of(1).receive());
  CHECK(open_pinned(b, address).header.status == CUDA_SUCCESS);
  CHECK(open_pinned(a, other.pinned_lease.address).header.status == CUDA_ERROR_INVALID_VALUE);
  // What was opened is given to nobody as this session's.
  proto::Attached third;
  TestClient c = broker.attach_on(0, third);
  broker.end(a, 0, owner.session);
  CHECK(open_pinned(c, address).header.status == CUDA_ERROR_INVALID_VALUE);
  // The range stays taken as long as somebody has memory in it.
  REQUIRE(broker.session(other.session).peer_pinned_leases.size() == 1);
  CHECK(same_range(broker.session(other.session).peer_pinned_leases.front(), owner.pinned_lease));
}

TEST_CASE("peer segments: ranges of sessions that have ended are held by no more than others can spare") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.resources.further_leases = 2;
  TwoDevices broker(true, limits);
  proto::Attached other;
  TestClient b = broker.attach_on(1, other);
  for (unsigned i = 0; i < 3; ++i) {
    proto::Attached owner;
    TestClient a = broker.attach_on(0, owner);
    REQUIRE(make_pinned(a, owner.pinned_lease.address).header.status == CUDA_SUCCESS);
    (void)broker.of(0).expect<message::SegmentAdd>();
    CHECK(open_pinned(b, owner.pinned_lease.address).header.status == (i < 2 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
    proto::PeerLease range;
    range.address = owner.device_lease.address;
    CHECK(b.ask<proto::PeerLeased>(range).header.status == (i < 2 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
    broker.end(a, 0, owner.session);
  }
}
