// SPDX-License-Identifier: Apache-2.0
// Calls and their reply slots.
#include <unistd.h>

#include "broker/executor/records/reply.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {

TEST_CASE("a call is answered in its slot, with the record's sequence") {
  WireExecutor executor;
  WireClient client(executor);
  client.call(proto::MemoryInfoRecord{}, 5);
  client.turn();
  REQUIRE(client.is_answered(5));
  CHECK(client.status(5) == CUDA_SUCCESS);
  CHECK(client.slot_of(5).sequence == 1);
  CHECK(client.slot_of(5).size_bytes == sizeof(proto::MemoryInfoReply));
  CHECK(client.body<proto::MemoryInfoReply>(5).total_bytes == 4u << 20);
}

TEST_CASE("a chunk is created, rounded up, inside the lease") {
  WireExecutor executor;
  WireClient client(executor);
  client.call(proto::ChunkCreateRecord{1});
  client.turn();
  REQUIRE(client.is_answered(0));
  REQUIRE(client.status(0) == CUDA_SUCCESS);
  const auto reply = client.body<proto::ChunkCreateReply>(0);
  CHECK(reply.size_bytes == 2u << 20);
  CHECK(reply.address >= kDeviceLease);
  client.call(proto::ChunkCreateRecord{kLeaseBytes + 1}, 1);
  client.call(proto::ChunkCreateRecord{0}, 2);
  executor.start_workers();  // large ones come from a helper
  executor.workers->add(client.shared_session());
  for (int i = 0; i < 2000 && !(client.is_answered(1) && client.is_answered(2)); ++i) usleep(1000);
  CHECK(client.status(1) == broker::MemoryMap::kNoRoomInLeases);  // the client asks for a further lease, or has no memory left
  CHECK(client.status(2) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a reply that is dropped answers all the same, and a reply answers once") {
  WireExecutor executor;
  WireClient client(executor);
  client.slot_of(0).state.store(proto::ReplySlot::pending);
  { broker::Reply reply(client.shared_session(), 0, 7); }
  REQUIRE(client.is_answered(0));
  CHECK(client.status(0) == CUDA_ERROR_UNKNOWN);
  CHECK(client.slot_of(0).sequence == 7);
  {
    broker::Reply first(client.shared_session(), 1, 8);
    broker::Reply second = std::move(first);
    CHECK_FALSE(first.is_pending());
    second.answer(CUDA_SUCCESS);
    second.answer(CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(client.status(1) == CUDA_SUCCESS);
}

TEST_CASE("a reply that exceeds its slot writes nothing beyond it") {
  WireExecutor executor;
  WireClient client(executor);
  client.slot_of(1).status = 0x1234;
  std::vector<std::byte> large(proto::kMaxReplyBytes + 1, std::byte{0xff});
  broker::Reply(client.shared_session(), 0, 1).answer(CUDA_SUCCESS, large);
  CHECK(client.status(0) == CUDA_ERROR_UNKNOWN);
  CHECK(client.slot_of(0).size_bytes == 0);
  CHECK(client.slot_of(1).status == 0x1234);
  large.pop_back();
  broker::Reply(client.shared_session(), 0, 1).answer(CUDA_SUCCESS, large);
  CHECK(client.status(0) == CUDA_SUCCESS);
  CHECK(client.slot_of(1).status == 0x1234);
}

TEST_CASE("questions about events that were not recorded, or are still queued, are refused") {
  WireExecutor executor;
  WireClient client(executor);
  const proto::EventId a = client.add_event(1, CU_EVENT_DEFAULT);
  const proto::EventId b = client.add_event(2, CU_EVENT_DEFAULT);
  client.call(proto::EventElapsedRecord{a, b});
  client.turn();
  CHECK(client.status(0) == CUDA_ERROR_MPS_SERVER_NOT_READY);  // the client has recorded them, so it was in an earlier executor
  client.post(proto::EventRecordRecord{a, 1, 0});
  client.post(proto::EventRecordRecord{b, 2, 0});
  client.call(proto::EventElapsedRecord{a, b}, 1);
  client.turn();
  CHECK(client.status(1) == CUDA_ERROR_NOT_READY);
}

}  // namespace mpsshim::test
