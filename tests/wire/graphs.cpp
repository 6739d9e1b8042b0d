// SPDX-License-Identifier: Apache-2.0
// Descriptions of executable graphs: what no correct client can send ends its session, what a wrong program can ask for is its error.
#include <atomic>

#include "proto/graph_nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

using proto::GraphNodeHeader;
using proto::GraphNodeKind;

constexpr auto kExec = proto::GraphExecId::make(3, 1);

struct Description {
  std::vector<std::byte> bytes;

  template <typename Payload>
  Description& node(std::uint32_t index, GraphNodeKind kind, const std::vector<std::uint32_t>& before, const Payload& payload) {
    return node(index, kind, before, std::as_bytes(std::span(&payload, 1)));
  }
  Description& node(std::uint32_t index, GraphNodeKind kind, const std::vector<std::uint32_t>& before = {}, std::span<const std::byte> payload = {}) {
    const GraphNodeHeader header{index, kind, 1, static_cast<std::uint32_t>(before.size()), static_cast<std::uint32_t>(payload.size())};
    put(std::as_bytes(std::span(&header, 1)));
    put(std::as_bytes(std::span(before)));
    put(payload);
    return *this;
  }
  void put(std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
    bytes.resize((bytes.size() + 7) / 8 * 8);
  }
};

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};

  void describe(std::span<const std::byte> bytes) { client.post(proto::GraphNodesRecord{kExec}, proto::kNullStream, bytes); }
  void instantiate(std::uint32_t nodes, std::uint32_t restores = 0) { client.call(proto::GraphInstantiateRecord{kExec, 0, nodes, restores}); }
  void check_ended() {
    client.turn();
    CHECK(client.has_failed());
  }
  // The error of a description that a wrong program may have caused, and the node it is found in.
  void check_refused(CUresult error, std::uint32_t node) {
    client.turn();
    REQUIRE_FALSE(client.has_failed());
    REQUIRE(client.is_answered(0));
    CHECK(client.status(0) == error);
    CHECK(client.body<proto::GraphInstantiateReply>(0).failed_node == node);
    // The id can be given back, and nothing of it is left to launch.
    client.post(proto::GraphLaunchRecord{kExec});
    client.turn();
    CHECK(client.take_async_error() == CUDA_ERROR_INVALID_HANDLE);
    client.post(proto::GraphExecDestroyRecord{kExec});
    client.turn();
    CHECK(client.take_async_error() == CUDA_SUCCESS);
    CHECK_FALSE(client.has_failed());
  }
};

proto::GraphCopy copy_between(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) {
  proto::GraphCopy copy;
  copy.destination = destination;
  copy.source = source;
  copy.width_bytes = bytes;
  copy.height = copy.depth = 1;
  return copy;
}

}  // namespace

TEST_CASE("descriptions that contradict themselves end the session") {
  SECTION("a dependency on a later node") {
    Fixture f;
    f.describe(Description().node(0, GraphNodeKind::empty, {1}).node(1, GraphNodeKind::empty).bytes);
    f.instantiate(2);
    f.check_ended();
  }
  SECTION("a dependency on itself") {
    Fixture f;
    f.describe(Description().node(0, GraphNodeKind::empty, {0}).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("numbers out of order") {
    Fixture f;
    f.describe(Description().node(1, GraphNodeKind::empty).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("another count of nodes") {
    Fixture f;
    f.describe(Description().node(0, GraphNodeKind::empty).bytes);
    f.instantiate(2);
    f.check_ended();
  }
  SECTION("half a node") {
    Fixture f;
    const Description whole = Description().node(0, GraphNodeKind::copy, {}, proto::GraphCopy{});
    f.describe(std::span(whole.bytes).first(whole.bytes.size() - 8));
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("a length that no record could have") {
    Fixture f;
    const GraphNodeHeader header{0, GraphNodeKind::empty, 1, ~0u, ~0u};
    f.describe(std::as_bytes(std::span(&header, 1)));
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("an unknown kind") {
    Fixture f;
    auto unknown = GraphNodeKind{};
    while (proto::is_known(unknown)) unknown = static_cast<GraphNodeKind>(static_cast<int>(unknown) + 1);
    f.describe(Description().node(0, unknown).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("a kernel node that is too short") {
    Fixture f;
    f.describe(Description().node(0, GraphNodeKind::kernel, {}, std::uint64_t{1}).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("a kernel node without the parameters that its function takes") {
    Fixture f;
    FakeFunction function;
    proto::LaunchRecord launch{};
    launch.function = f.client.add_function(function);
    launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
    launch.parameter_bytes = 8;
    f.describe(Description().node(0, GraphNodeKind::kernel, {}, launch).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("an id of another kind") {
    Fixture f;
    f.client.post(proto::GraphLaunchRecord{proto::GraphExecId{kExec.value ^ (1ull << 56)}});
    f.check_ended();
  }
}

TEST_CASE("what a wrong program may put into a graph is its error") {
  SECTION("a function that is gone") {
    Fixture f;
    proto::LaunchRecord launch{};
    launch.function = proto::FunctionId::make(9, 1);
    f.describe(Description().node(0, GraphNodeKind::empty).node(1, GraphNodeKind::kernel, {0}, launch).bytes);
    f.instantiate(2);
    f.check_refused(CUDA_ERROR_INVALID_HANDLE, 1);
  }
  SECTION("memory of another session") {
    Fixture f;
    const std::uint64_t own = f.client.add_chunk(2u << 20);
    f.describe(Description().node(0, GraphNodeKind::copy, {}, copy_between(own, kDeviceLease + kLeaseBytes, 64)).bytes);
    f.instantiate(1);
    f.check_refused(CUDA_ERROR_INVALID_VALUE, 0);
  }
  SECTION("a box whose end leaves the memory, or any address space") {
    for (const std::uint64_t pitch : {std::uint64_t{1} << 20, ~std::uint64_t{0}}) {
      Fixture f;
      const std::uint64_t own = f.client.add_chunk(2u << 20);
      proto::GraphCopy copy = copy_between(own, own, 64);
      copy.height = 3;
      copy.destination_pitch_bytes = 64;
      copy.source_pitch_bytes = pitch;
      f.describe(Description().node(0, GraphNodeKind::copy, {}, copy).bytes);
      f.instantiate(1);
      f.check_refused(CUDA_ERROR_INVALID_VALUE, 0);
    }
  }
  SECTION("a fill beyond the end") {
    Fixture f;
    const std::uint64_t own = f.client.add_chunk(2u << 20);
    f.describe(Description().node(0, GraphNodeKind::fill, {}, proto::FillRecord{own, 0, 1u << 20, 1, 0, 4}).bytes);
    f.instantiate(1);
    f.check_refused(CUDA_ERROR_INVALID_VALUE, 0);
  }
  SECTION("an event that is gone") {
    Fixture f;
    f.describe(Description().node(0, GraphNodeKind::event_record, {}, proto::EventId::make(5, 1)).bytes);
    f.instantiate(1);
    f.check_refused(CUDA_ERROR_INVALID_HANDLE, 0);
  }
  SECTION("a graph that is none") {
    Fixture f;
    f.client.post(proto::GraphLaunchRecord{kExec});
    f.client.turn();
    CHECK(f.client.take_async_error() == CUDA_ERROR_INVALID_HANDLE);
    f.client.post(proto::GraphExecDestroyRecord{kExec});
    f.client.turn();
    CHECK(f.client.take_async_error() == CUDA_ERROR_INVALID_HANDLE);
    CHECK_FALSE(f.client.has_failed());
  }
}

TEST_CASE("a graph of an earlier executor may name what is gone: it is there and cannot be launched") {
  Fixture f;
  proto::LaunchRecord launch{};
  launch.function = proto::FunctionId::make(9, 1);
  f.describe(Description().node(0, GraphNodeKind::kernel, {}, launch).bytes);
  f.instantiate(1, 1);
  f.client.turn();
  REQUIRE(f.client.is_answered(0));
  CHECK(f.client.status(0) == CUDA_SUCCESS);
  CHECK(f.client.body<proto::GraphInstantiateReply>(0).failed_node == 1);
  f.client.post(proto::GraphSetNodesRecord{kExec, 1, 0}, proto::kNullStream, Description().node(0, GraphNodeKind::kernel, {}, launch).bytes);
  f.client.turn();
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
  f.client.post(proto::GraphLaunchRecord{kExec});
  f.client.turn();
  CHECK(f.client.take_async_error() == CUDA_ERROR_INVALID_HANDLE);
  CHECK_FALSE(f.client.has_failed());
}

TEST_CASE("memory that is given up while a helper is to make a graph of it ends after that call") {
  WireExecutor executor;
  WireClient client{executor};
  client.add_segment(proto::SegmentPurpose::pinned, 4096);
  executor.start_workers();
  executor.workers->add(client.shared_session());
  std::atomic<bool> may_go_on{false};
  executor.helpers->submit(1, [&] {
    while (!may_go_on) usleep(1'000);
  });
  const proto::FillRecord fill{kPinnedLease, 0, 16, 1, 1, 4};
  client.post(proto::GraphNodesRecord{kExec}, proto::kNullStream, Description().node(0, GraphNodeKind::fill, {}, fill).bytes);
  client.call(proto::GraphInstantiateRecord{kExec, 0, 1, 0});
  client.post(proto::SegmentUnmapRecord{1});  // in a window, which waits for no helper
  usleep(100'000);
  CHECK(executor.fake.oracle.registered_bytes(kPinnedLease) != 0);
  may_go_on = true;
  CHECK(eventually([&] { return client.is_answered(0) && executor.fake.oracle.registered_bytes(kPinnedLease) == 0; }));
  CHECK(client.status(0) == CUDA_SUCCESS);
  client.post(proto::GraphLaunchRecord{kExec});
  CHECK(eventually([&] { return client.take_async_error() == CUDA_ERROR_INVALID_VALUE; }));
  std::atomic<bool> is_closed{false};
  executor.workers->close(1, [&] { is_closed = true; });
  CHECK(eventually([&] { return is_closed.load(); }));
}

namespace {

constexpr auto kConditioned = proto::GraphId::make(4, 1);
constexpr std::uint64_t kHandle = 77;

struct ConditionFixture : Fixture {
  ConditionFixture() {
    (void)client.session().conditions().find_or_add(*executor.driver, kConditioned);
    if (!client.session().conditions().add(kConditioned, kHandle)) throw std::bad_alloc();
  }
};

// A conditional node's payload with one body.
std::vector<std::byte> condition(std::uint64_t handle, std::uint32_t type, std::uint32_t node_count, std::span<const std::byte> body) {
  Description payload;
  const proto::GraphCondition head{handle, type, 1};
  const proto::GraphBody lengths{node_count, static_cast<std::uint32_t>(body.size())};
  payload.put(std::as_bytes(std::span(&head, 1)));
  payload.put(std::as_bytes(std::span(&lengths, 1)));
  payload.put(body);
  return payload.bytes;
}
std::vector<std::byte> one_condition(const std::vector<std::byte>& payload) {
  return Description().node(0, GraphNodeKind::conditional, {}, std::span(payload)).bytes;
}

}  // namespace

TEST_CASE("conditional nodes that contradict themselves end the session") {
  ConditionFixture f;
  const std::vector<std::byte> body = Description().node(0, GraphNodeKind::empty).bytes;
  SECTION("too short") { f.describe(Description().node(0, GraphNodeKind::conditional, {}, std::uint64_t{kHandle}).bytes); }
  SECTION("of no type") { f.describe(one_condition(condition(kHandle, 3, 1, body))); }
  SECTION("with more bodies than there are") {
    std::vector<std::byte> payload = condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, body);
    reinterpret_cast<proto::GraphCondition*>(payload.data())->body_count = 2;
    f.describe(one_condition(payload));
  }
  SECTION("a loop with two bodies") {
    std::vector<std::byte> payload = condition(kHandle, CU_GRAPH_COND_TYPE_WHILE, 1, body);
    reinterpret_cast<proto::GraphCondition*>(payload.data())->body_count = 2;
    f.describe(one_condition(payload));
  }
  SECTION("a body longer than the node") {
    std::vector<std::byte> payload = condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, body);
    reinterpret_cast<proto::GraphBody*>(payload.data() + sizeof(proto::GraphCondition))->bytes = 1u << 20;
    f.describe(one_condition(payload));
  }
  SECTION("a body of another count of nodes") { f.describe(one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 2, body))); }
  SECTION("a body whose nodes depend on later ones") {
    f.describe(one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, Description().node(0, GraphNodeKind::empty, {0}).bytes)));
  }
  SECTION("a body with a disabled node: the driver could not disable it") {
    Description disabled = Description().node(0, GraphNodeKind::empty);
    reinterpret_cast<GraphNodeHeader*>(disabled.bytes.data())->is_enabled = 0;
    f.describe(one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, disabled.bytes)));
  }
  f.instantiate(1);
  f.check_ended();
}

TEST_CASE("what a wrong program may put into a conditional node is its error") {
  ConditionFixture f;
  const std::vector<std::byte> body = Description().node(0, GraphNodeKind::empty).bytes;
  SECTION("a handle that is none") {
    f.describe(one_condition(condition(kHandle + 1, CU_GRAPH_COND_TYPE_IF, 1, body)));
    f.instantiate(1);
    f.check_refused(CUDA_ERROR_INVALID_VALUE, 0);
  }
  SECTION("handles of two graphs") {
    constexpr auto kOther = proto::GraphId::make(5, 1);
    (void)f.client.session().conditions().find_or_add(*f.executor.driver, kOther);
    REQUIRE(f.client.session().conditions().add(kOther, kHandle + 1));
    const auto first = condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, body);
    const auto second = condition(kHandle + 1, CU_GRAPH_COND_TYPE_IF, 1, body);
    f.describe(
        Description().node(0, GraphNodeKind::conditional, {}, std::span(first)).node(1, GraphNodeKind::conditional, {}, std::span(second)).bytes);
    f.instantiate(2);
    f.check_refused(CUDA_ERROR_INVALID_VALUE, 2);
  }
  SECTION("an event's record in a body") {
    const proto::EventId event = f.client.add_event(1);
    f.client.turn();
    f.describe(one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, Description().node(0, GraphNodeKind::event_record, {}, event).bytes)));
    f.instantiate(1);
    f.check_refused(CUDA_ERROR_NOT_SUPPORTED, 0);
  }
  SECTION("deeper than bodies may lie in bodies") {
    std::vector<std::byte> nested = body;
    for (unsigned i = 0; i <= proto::kMostNestedConditions; ++i) nested = one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, nested));
    f.describe(nested);
    f.instantiate(1);
    f.check_refused(CUDA_ERROR_NOT_SUPPORTED, 0);
  }
}

TEST_CASE("conditional handles of a graph that is gone are gone") {
  ConditionFixture f;
  f.executor.start_workers();  // what is left of it ends in a window, which reports to the worker
  f.executor.workers->add(f.client.shared_session());
  f.client.post(proto::ConditionsEndRecord{kConditioned});
  f.client.post(proto::ConditionsEndRecord{kConditioned});  // the second time there is none
  CHECK(eventually([&] { return f.client.take_async_error() == CUDA_ERROR_INVALID_HANDLE; }));
  f.describe(one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, Description().node(0, GraphNodeKind::empty).bytes)));
  f.instantiate(1);
  CHECK(eventually([&] { return f.client.is_answered(0); }));
  CHECK(f.client.status(0) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(f.client.has_failed());
  // The worker must be gone before its session, and the session's jobs, which report to it, before that.
  std::atomic<bool> is_closed{false};
  f.executor.workers->close(1, [&] { is_closed = true; });
  CHECK(eventually([&] { return is_closed.load(); }));
  f.executor.workers.reset();
}

namespace {

// An executable graph on real workers, whose one node copies from one chunk to another.
struct CopyFixture : Fixture {
  std::uint64_t target = client.add_chunk(2u << 20);
  std::uint64_t source = client.add_chunk(2u << 20);

  CopyFixture() {
    executor.start_workers();
    executor.workers->add(client.shared_session());
    describe(Description().node(0, GraphNodeKind::copy, {}, copy_between(target, source, 64)).bytes);
    instantiate(1);
    CHECK(eventually([&] { return client.is_answered(0); }));
    CHECK(client.status(0) == CUDA_SUCCESS);
  }
  ~CopyFixture() {
    executor.fake.resume_work();
    std::atomic<bool> is_closed{false};
    executor.workers->close(1, [&] { is_closed = true; });
    CHECK(eventually([&] { return is_closed.load(); }));
    executor.workers.reset();
  }
  void launch() { client.post(proto::GraphLaunchRecord{kExec}); }
  void set_source(std::uint64_t from, bool is_enabled = true) {
    Description changed = Description().node(0, GraphNodeKind::copy, {}, copy_between(target, from, 64));
    reinterpret_cast<GraphNodeHeader*>(changed.bytes.data())->is_enabled = is_enabled ? 1 : 0;
    client.post(proto::GraphSetNodesRecord{kExec, 0, 0}, proto::kNullStream, changed.bytes);
  }
  std::vector<FakeCall> copies() { return executor.fake.calls(FakeCall::copy); }
  bool is_refused() {
    return eventually([&] { return client.take_async_error() == CUDA_ERROR_INVALID_VALUE; });
  }
};

}  // namespace

TEST_CASE("a graph whose memory has been given back is not launched until its nodes name other memory") {
  CopyFixture f;
  f.launch();
  CHECK(eventually([&] { return f.copies().size() == 1; }));
  f.client.post(proto::ChunkReleaseRecord{f.source});
  f.launch();
  CHECK(f.is_refused());
  const std::uint64_t other = f.client.add_chunk(2u << 20);
  f.set_source(other);
  f.launch();
  CHECK(eventually([&] { return f.copies().size() == 2; }));
  CHECK(f.copies().back().source == other);
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
  f.client.post(proto::ChunkReleaseRecord{f.target});
  f.launch();
  CHECK(f.is_refused());
  CHECK(f.copies().size() == 2);
  CHECK_FALSE(f.client.has_failed());
}

TEST_CASE("a launch that is queued keeps its memory") {
  CopyFixture f;
  f.executor.fake.hold_work();
  f.launch();
  CHECK(eventually([&] { return f.copies().size() == 1; }));
  f.client.post(proto::ChunkReleaseRecord{f.source});
  f.launch();
  CHECK(f.is_refused());
  CHECK(f.client.session().memory().is_releasing());
  f.executor.fake.resume_work();
  CHECK(eventually([&] { return !f.client.session().memory().is_releasing(); }));
}

TEST_CASE("a graph of copies alone is under way for whoever asks after a fault") {
  CopyFixture f;
  f.executor.fake.hold_work();
  f.launch();
  CHECK(eventually([&] { return f.copies().size() == 1; }));
  const broker::StreamProgress& row = f.executor.progress->stream[0];
  REQUIRE(row.session == 1);
  CHECK(row.kinds == broker::WorkKind::memory);
  CHECK_FALSE(broker::progress_reached(row.completed, row.touched));
  f.executor.fake.resume_work();
  CHECK(eventually([&] { return broker::progress_reached(row.completed, row.touched); }));
}

TEST_CASE("a graph may copy from a variable while its module is there") {
  CopyFixture f;
  constexpr std::uint64_t kVariable = 0x5'0000'0000;
  const proto::ModuleId module = f.client.add_module(1, kVariable, 64);
  f.client.post_lookup(module, 1);
  REQUIRE(eventually([&] { return f.client.is_answered(1); }));
  REQUIRE(f.client.status(1) == CUDA_SUCCESS);
  f.set_source(kVariable);
  f.launch();
  CHECK(eventually([&] { return f.copies().size() == 1; }));
  f.client.post(proto::ModuleUnloadRecord{module});
  f.launch();
  CHECK(f.is_refused());
  CHECK(eventually([&] { return !f.executor.fake.oracle.has_variable(kVariable); }));
  f.launch();
  CHECK(f.is_refused());
  CHECK(f.copies().size() == 1);
}

TEST_CASE("a graph that the driver did not change as it was asked to is not launched any more") {
  CopyFixture f;
  f.executor.fake.refuses_changes = true;
  f.set_source(f.client.add_chunk(2u << 20));
  f.launch();
  CHECK(f.is_refused());
  f.client.post(proto::ChunkReleaseRecord{f.source});  // which the driver's graph still names
  f.launch();
  f.client.post_fence(1);
  CHECK(eventually([&] { return f.client.fence() == 1; }));
  CHECK(f.copies().empty());
}

TEST_CASE("what a disabled node names does not keep its graph from being launched") {
  CopyFixture f;
  f.set_source(f.source, false);
  f.client.post(proto::ChunkReleaseRecord{f.source});
  f.launch();
  f.client.post_fence(1);
  CHECK(eventually([&] { return f.client.fence() == 1; }));
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
}

}  // namespace mpsshim::test
