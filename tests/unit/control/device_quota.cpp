// SPDX-License-Identifier: Apache-2.0
// What a user's clients may hold of a device together: counted over sessions, executors and lives.
#include "broker/control/sessions/device_quota.hpp"

#include <unistd.h>

#include "broker/control/server/commands.hpp"
#include "proto/ids.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kLimit = 100 * kMiB;

struct Quota : ControlFixture {
  explicit Quota(std::uint64_t limit = kLimit) : ControlFixture(limits(limit)) { serve(); }
  static SessionLimits limits(std::uint64_t limit) {
    SessionLimits limits = limits_with(2);
    limits.serves_all_users = limits.shares_executors = true;
    limits.resources.process_sessions = 10;  // all are this process
    limits.resources.user.device_bytes = limit;
    return limits;
  }
  struct Answer {
    CUresult status;
    std::uint64_t number;
    std::uint64_t left;
  };
  // What the executor hears when it asks on behalf of a session.
  Answer ask(std::uint64_t session, std::uint64_t bytes) {
    executor().send(message::MemoryWant{.session = session, .question = ++asked, .size_bytes = bytes});
    const message::MemoryGrant answer = executor().expect<message::MemoryGrant>().message;
    CHECK(answer.question == asked);
    return {static_cast<CUresult>(answer.status), answer.question, answer.left_bytes};
  }
  void release(std::uint64_t session, std::uint64_t chunk) { executor().send(message::ChunkReleased{.session = session, .chunk = chunk}); }
  void give_back(std::uint64_t session, std::uint64_t number) { executor().send(message::MemoryBack{.session = session, .question = number}); }
  void create(std::uint64_t session, std::uint64_t object, std::uint64_t bytes, std::uint64_t grant) {
    const proto::FileDescriptor file = proto::create_memory_file("chunk", 4096);
    executor().send({message::ChunkCreated{.session = session, .chunk = object, .grant = grant, .size_bytes = bytes}, {.handle = file.get()}});
  }
  // Asked for and made.
  void take(std::uint64_t session, std::uint64_t object, std::uint64_t bytes) {
    const Answer answer = ask(session, bytes);
    REQUIRE(answer.status == CUDA_SUCCESS);
    create(session, object, bytes, answer.number);
  }
  std::uint64_t left(std::uint64_t session) { return ask(session, 0).left; }
  std::uint64_t asked = 0;
};

}  // namespace

TEST_CASE("device quota: an executor is told of the limit, or that there is none") {
  for (const std::uint64_t limit : {kLimit, std::uint64_t{0}}) {
    Quota broker(limit);
    TestClient client = broker.connect();
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    client.send(proto::Attach{});
    CHECK(broker.executor().expect<message::SessionOpen>().message.device_limit_bytes == limit);
  }
}

TEST_CASE("device quota: a user's sessions share it, to the last byte and not one further") {
  Quota broker;
  proto::Attached first, second;
  const TestClient a = broker.attach(&first), b = broker.attach(&second);
  broker.take(first.session, 0x1000, 60 * kMiB);
  CHECK(broker.ask(second.session, 40 * kMiB + 1).status == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(broker.left(second.session) == 40 * kMiB);
  broker.take(second.session, 0x2000, 40 * kMiB);
  CHECK(broker.ask(first.session, 1).status == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(broker.ask(first.session, UINT64_MAX).status == CUDA_ERROR_OUT_OF_MEMORY);
  std::string table;
  Commands(broker.manager, nullptr).execute("users", [&](const Commands::Result& result) { table = result.text; });
  CHECK(table.find(" 100/100 ") != std::string::npos);
  broker.release(first.session, 0x1000);
  CHECK(broker.left(second.session) == 60 * kMiB);
}

TEST_CASE("device quota: what may be made counts before it is, and until it is given back") {
  Quota broker;
  proto::Attached first, second;
  const TestClient a = broker.attach(&first), b = broker.attach(&second);
  const Quota::Answer granted = broker.ask(first.session, kLimit);
  REQUIRE(granted.status == CUDA_SUCCESS);
  CHECK(granted.left == 0);
  CHECK(broker.ask(second.session, 1).status == CUDA_ERROR_OUT_OF_MEMORY);
  SECTION("it was not made") { broker.give_back(first.session, granted.number); }
  SECTION("its executor ends: what was made there and nobody keeps is gone") {
    broker.executor().die();
    broker.next_life(2);
    TestClient c = broker.attach(&second);
    CHECK(broker.left(second.session) == kLimit);
    return;
  }
  CHECK(broker.left(second.session) == kLimit);
}

TEST_CASE("device quota: it is each user's own") {
  if (geteuid() != 0) MPSSHIM_SKIP("only root can become another user");
  Quota broker;
  proto::Attached first;
  const TestClient a = broker.attach(&first);
  broker.take(first.session, 0x1000, kLimit);
  TestClient other = broker.connect(1001);
  REQUIRE(other.hello().header.status == CUDA_SUCCESS);
  other.send(proto::Attach{});
  broker.executor().open_session();
  const auto second = other.await<proto::Attached>();
  CHECK(broker.left(second.session) == kLimit);
  broker.take(second.session, 0x2000, kLimit);
}

TEST_CASE("device quota: chunks count across executors, whose lives begin with them") {
  Quota broker;
  proto::Attached first, second;
  TestClient a = broker.attach(&first);
  broker.take(first.session, 0x1000, 60 * kMiB);
  turn_for(broker.loop, 10);
  broker.executor().die();
  broker.next_life(2);
  const TestClient b = broker.attach(&second);
  CHECK(broker.left(second.session) == 40 * kMiB);
  a.hang_up();  // it never came back
  REQUIRE(turn_until(broker.loop, [&] { return !broker.has_session(first.session); }));
  CHECK(broker.left(second.session) == kLimit);
}

TEST_CASE("device quota: memory that sessions share counts once, as long as one of them has it") {
  Quota broker;
  proto::Attached first, second;
  TestClient a = broker.attach(&first);
  const TestClient b = broker.attach(&second);
  constexpr std::uint64_t kPiece = proto::MemoryId::make(1, 1).value;
  broker.take(first.session, kPiece, 70 * kMiB);
  turn_for(broker.loop, 10);
  ClientSession& importer = *broker.manager.find(second.session);
  const auto name = broker.manager.chunks().share(broker.session(first.session), kPiece);
  REQUIRE(name);
  proto::MemoryOpen open;
  open.name = *name;
  DeviceChunks::Opened opened;
  SECTION("as memory of its own") {
    open.memory = proto::MemoryId::make(7, 1).value;
    REQUIRE(broker.manager.chunks().open(importer, open, *broker.manager.facts(), opened) == CUDA_SUCCESS);
    (void)broker.executor().expect<message::PieceAdd>();
    broker.create(second.session, open.memory, opened.size_bytes, 0);
    CHECK(broker.left(second.session) == 30 * kMiB);
    broker.release(first.session, kPiece);
    CHECK(broker.left(second.session) == 30 * kMiB);
    broker.release(second.session, open.memory);
  }
  SECTION("through cuImportExternalMemory") {
    open.memory = proto::ExternalMemoryId::make(7, 1).value;
    REQUIRE(broker.manager.chunks().open(importer, open, *broker.manager.facts(), opened) == CUDA_SUCCESS);
    const std::uint64_t number = broker.executor().expect<message::PieceAdd>().message.piece;
    broker.executor().send(message::PieceTaken{.session = second.session, .memory = open.memory, .piece = number});
    broker.release(first.session, kPiece);
    CHECK(broker.left(second.session) == 30 * kMiB);
    broker.executor().send(message::PieceEnded{.session = second.session, .piece = number});
  }
  CHECK(broker.left(second.session) == kLimit);
}

TEST_CASE("device quota: without a limit all is counted and nothing refused, whose session is gone is answered") {
  Quota broker(0);
  proto::Attached first;
  const TestClient a = broker.attach(&first);
  broker.create(first.session, 0x1000, 3 * kMiB, 0);
  const Quota::Answer answer = broker.ask(first.session, UINT64_MAX / 2);
  CHECK(answer.status == CUDA_SUCCESS);
  CHECK(answer.left == UINT64_MAX);
  broker.give_back(first.session, answer.number);
  turn_for(broker.loop, 10);
  std::string table;
  Commands(broker.manager, nullptr).execute("users", [&](const Commands::Result& result) { table = result.text; });
  CHECK(table.find(" 3 ") != std::string::npos);
  CHECK(broker.ask(first.session + 7, 1).status == CUDA_ERROR_MPS_SERVER_NOT_READY);
}
