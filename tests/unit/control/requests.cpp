// SPDX-License-Identifier: Apache-2.0
// What an attached client asks of the control process, and what its executor is told of it.
#include "proto/shared_events.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

proto::SegmentCreate segment_request(proto::SegmentPurpose purpose, std::uint64_t address, std::uint64_t size) {
  proto::SegmentCreate request;
  request.purpose = purpose;
  request.address = address;
  request.size_bytes = size;
  return request;
}

std::uint64_t add_image(TestClient& client, const std::string& content) {
  proto::ImageOpen open;
  open.size_bytes = content.size();
  const auto opened = client.ask<proto::ImageOpened>(open);
  REQUIRE(opened.header.status == CUDA_SUCCESS);
  REQUIRE(client.fds.count == 1);
  REQUIRE(pwrite(client.fds.fds[0].get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  proto::ImageSeal seal;
  seal.image = opened.image;
  const auto done = client.ask<proto::Done>(seal);
  REQUIRE(done.header.status == CUDA_SUCCESS);
  return done.image;
}

}  // namespace

TEST_CASE("a segment is known to the executor before the client has its id, and is one memory") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  client.send(segment_request(proto::SegmentPurpose::pinned, attached.pinned_lease.address, 8192));
  const auto created = client.await<proto::SegmentCreated>();
  REQUIRE(created.header.status == CUDA_SUCCESS);
  REQUIRE(client.fds.count == 1);
  auto arrived = broker.executor().receive();  // no turn of the loop: it is there already
  REQUIRE(arrived);
  REQUIRE(arrived->is<message::SegmentAdd>());
  const auto [added, fds] = arrived->take<message::SegmentAdd>();
  CHECK(added.session == attached.session);
  CHECK(added.segment == created.segment);
  CHECK(added.address == attached.pinned_lease.address);
  REQUIRE(pwrite(client.fds.fds[0].get(), "hello", 5, 100) == 5);
  char text[5];
  REQUIRE(pread(fds.file.get(), text, 5, 100) == 5);
  CHECK(std::string(text, 5) == "hello");
}

TEST_CASE("a segment that was released gives its address back") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  const auto request = segment_request(proto::SegmentPurpose::pinned, attached.pinned_lease.address, 8192);
  const auto created = client.ask<proto::SegmentCreated>(request);
  REQUIRE(created.header.status == CUDA_SUCCESS);
  CHECK(client.ask<proto::SegmentCreated>(request).header.status == CUDA_ERROR_INVALID_VALUE);
  broker.executor().send(message::SegmentReleased{.session = attached.session, .segment = created.segment});
  turn_for(broker.loop, 10);
  CHECK(client.ask<proto::SegmentCreated>(request).header.status == CUDA_SUCCESS);
}

TEST_CASE("events of one session are opened by another, and completed when their recorder ends") {
  ControlFixture broker;
  broker.serve();
  proto::Attached owner, other;
  TestClient a = broker.attach(&owner), b = broker.attach(&other);
  const auto wrong_size = segment_request(proto::SegmentPurpose::events, owner.pinned_lease.address, 8192);
  CHECK(a.ask<proto::SegmentCreated>(wrong_size).header.status == CUDA_ERROR_INVALID_VALUE);
  const auto pinned = a.ask<proto::SegmentCreated>(segment_request(proto::SegmentPurpose::pinned, owner.pinned_lease.address, 8192));
  REQUIRE(pinned.header.status == CUDA_SUCCESS);
  proto::MemoryShare share;
  share.object = pinned.segment;
  CHECK(a.ask<proto::MemoryShared>(share).header.status == CUDA_ERROR_INVALID_VALUE);  // not a segment of events
  const std::uint64_t place = owner.pinned_lease.address + 8192;
  const auto created = a.ask<proto::SegmentCreated>(segment_request(proto::SegmentPurpose::events, place, proto::kSharedEventBytes));
  REQUIRE(created.header.status == CUDA_SUCCESS);
  const proto::Mapping mine = proto::Mapping::map(a.fds.fds[0], 0, proto::kSharedEventBytes, proto::Access::read_write);
  REQUIRE(mine);
  share.object = created.segment;
  const auto shared = a.ask<proto::MemoryShared>(share);
  REQUIRE(shared.header.status == CUDA_SUCCESS);

  proto::SegmentOpen open;
  open.size_bytes = proto::kSharedEventBytes;
  open.address = other.pinned_lease.address;
  CHECK(b.ask<proto::SegmentCreated>(open).header.status == CUDA_ERROR_INVALID_HANDLE);  // no such name
  open.name = shared.name;
  open.address = owner.pinned_lease.address;
  CHECK(b.ask<proto::SegmentCreated>(open).header.status == CUDA_ERROR_INVALID_VALUE);  // not in its own range
  open.address = other.pinned_lease.address;
  const auto opened = b.ask<proto::SegmentCreated>(open);
  REQUIRE(opened.header.status == CUDA_SUCCESS);
  const proto::Mapping theirs = proto::Mapping::map(b.fds.fds[0], 0, proto::kSharedEventBytes, proto::Access::read_write);
  REQUIRE(theirs);

  // Two records of the owner, of which one is complete, and one of the other session's.
  auto& slot = reinterpret_cast<proto::SharedEventSlot*>(mine.data())[3];
  slot.recorded = 3;
  slot.recorder[1] = slot.recorder[2] = owner.session;
  slot.recorder[3] = other.session;
  slot.completed[1] = 1;
  a.hang_up();
  turn_for(broker.loop, 10);
  broker.executor().send(message::SessionClosed{.session = owner.session});
  const auto& seen = reinterpret_cast<const proto::SharedEventSlot*>(theirs.data())[3];
  CHECK(turn_until(broker.loop, [&] { return seen.completed[2] == 2; }));
  CHECK(seen.abandoned[1] == 0);
  CHECK(seen.abandoned[2] == 2);
  CHECK(seen.completed[3] == 0);
  CHECK(b.ask<proto::SegmentCreated>(open).header.status == CUDA_ERROR_INVALID_HANDLE);  // the name has ended with its session
}

TEST_CASE("requests that need a session are refused without one") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  CHECK(client.ask<proto::SegmentCreated>(segment_request(proto::SegmentPurpose::staging, 0, 4096)).header.status == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(client.ask<proto::ImageOpened>(proto::ImageOpen{}).header.status == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(client.ask<proto::Done>(proto::ImageSeal{}).header.status == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(client.ask<proto::LeaseReplaced>(proto::LeaseReplace{}).header.status == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("images: one id for equal content, the executor gets it for those who have it") {
  ControlFixture broker;
  broker.serve();
  proto::Attached first;
  proto::Attached second;
  proto::Attached third;
  TestClient a = broker.attach(&first);
  TestClient b = broker.attach(&second);
  TestClient c = broker.attach(&third);
  const std::uint64_t image = add_image(a, "module");
  CHECK(add_image(b, "module") == image);
  const auto want = [&](std::uint64_t session) {
    broker.executor().send(message::ImageWant{.session = session, .image = image});
    return broker.executor().expect<message::ImageGive>();
  };
  const auto given = want(second.session);
  CHECK(given.message.status == CUDA_SUCCESS);
  CHECK(given.message.size_bytes == 6);
  char text[6];
  REQUIRE(pread(given.fds.image.get(), text, 6, 0) == 6);
  CHECK(std::string(text, 6) == "module");
  const auto refused = want(third.session);
  CHECK(refused.message.status == CUDA_ERROR_INVALID_HANDLE);
  CHECK_FALSE(refused.fds.image.valid());
}

TEST_CASE("a client that asks for the next thing before it has its answer gets both, in order") {
  ControlFixture broker;
  broker.serve();
  TestClient client = broker.attach();
  client.send(segment_request(proto::SegmentPurpose::staging, 0, 4096));
  client.send(segment_request(proto::SegmentPurpose::staging, 0, 4097));
  CHECK(client.await<proto::SegmentCreated>().header.status == CUDA_SUCCESS);
  CHECK(client.await<proto::SegmentCreated>().header.status == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a lease the client cannot keep is replaced, in the executor too, and not offered again") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  proto::LeaseReplace request;
  request.refused = attached.device_lease;
  client.send(request);
  broker.executor().expect<message::SessionClose>();
  broker.executor().send(message::SessionClosed{.session = attached.session});
  const auto open = broker.executor().expect<message::SessionOpen>();
  CHECK(open.message.device_lease.address != attached.device_lease.address);
  CHECK(open.message.pinned_lease.address == attached.pinned_lease.address);
  broker.executor().send(message::SessionOpened{.session = attached.session});
  const auto replaced = client.await<proto::LeaseReplaced>();
  REQUIRE(replaced.header.status == CUDA_SUCCESS);
  CHECK(replaced.lease.address == open.message.device_lease.address);
  CHECK(broker.session(attached.session).phase == SessionPhase::active);
}

TEST_CASE("a further device range: announced before its client learns of it, handed to the next executor, given back") {
  ControlFixture broker;
  broker.executor().ready(CUDA_SUCCESS, 141ull << 30);
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.facts_file() >= 0; }));
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  proto::LeaseAdd request;
  request.size_bytes = 40ull << 30;
  const auto added = client.ask<proto::LeaseAdded>(request);
  REQUIRE(added.header.status == CUDA_SUCCESS);
  CHECK(added.lease.size_bytes >= request.size_bytes);
  CHECK(added.lease.address != attached.device_lease.address);
  CHECK(broker.executor().expect<message::LeaseAdd>().message.lease.address == added.lease.address);
  request.size_bytes = UINT64_MAX;
  CHECK(client.ask<proto::LeaseAdded>(request).header.status == CUDA_ERROR_OUT_OF_MEMORY);

  broker.executor().die();
  ExecutorPeer& next = broker.next_life(2);
  client.send(proto::Attach{});
  CHECK(next.expect<message::LeaseRestore>().message.lease.address == added.lease.address);
  next.open_session();
  REQUIRE(client.await<proto::Attached>().header.status == CUDA_SUCCESS);

  next.send(message::LeaseReleased{.session = attached.session, .address = added.lease.address});
  CHECK(turn_until(broker.loop, [&] { return broker.session(attached.session).more_leases.empty(); }));
}

TEST_CASE("a lease is not replaced once there is memory in it, nor one that is not the client's") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  TestClient client = broker.attach(&attached);
  proto::LeaseReplace request;
  request.refused = {attached.device_lease.address + 4096, attached.device_lease.size_bytes};
  CHECK(client.ask<proto::LeaseReplaced>(request).header.status == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(client.ask<proto::SegmentCreated>(segment_request(proto::SegmentPurpose::staging, 0, 4096)).header.status == CUDA_SUCCESS);
  request.refused = attached.device_lease;
  CHECK(client.ask<proto::LeaseReplaced>(request).header.status == CUDA_ERROR_INVALID_VALUE);
}
