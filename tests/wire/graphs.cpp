// SPDX-License-Identifier: Apache-2.0
// Descriptions of executable graphs: what no correct client can send ends its session, what a wrong program can ask for is its error.
#include "broker/executor/graphs/graph_node.hpp"
#include "tests/wire/support/graph_fixture.hpp"

namespace mpsshim::test {

TEST_CASE("descriptions that contradict themselves end the session") {
  SECTION("a dependency on a later node") {
    GraphFixture f;
    f.describe(GraphDescription().node(0, GraphNodeKind::empty, {1}).node(1, GraphNodeKind::empty).bytes);
    f.instantiate(2);
    f.check_ended();
  }
  SECTION("a dependency on itself") {
    GraphFixture f;
    f.describe(GraphDescription().node(0, GraphNodeKind::empty, {0}).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("numbers out of order") {
    GraphFixture f;
    f.describe(GraphDescription().node(1, GraphNodeKind::empty).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("another count of nodes") {
    GraphFixture f;
    f.describe(GraphDescription().node(0, GraphNodeKind::empty).bytes);
    f.instantiate(2);
    f.check_ended();
  }
  SECTION("half a node") {
    GraphFixture f;
    const GraphDescription whole = GraphDescription().node(0, GraphNodeKind::copy, {}, proto::GraphCopy{});
    f.describe(std::span(whole.bytes).first(whole.bytes.size() - 8));
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("a length that no record could have") {
    GraphFixture f;
    const GraphNodeHeader header{0, GraphNodeKind::empty, 1, ~0u, ~0u};
    f.describe(std::as_bytes(std::span(&header, 1)));
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("an unknown kind") {
    GraphFixture f;
    auto unknown = GraphNodeKind{};
    while (proto::is_known(unknown)) unknown = static_cast<GraphNodeKind>(static_cast<int>(unknown) + 1);
    f.describe(GraphDescription().node(0, unknown).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("a kernel node that is too short") {
    GraphFixture f;
    f.describe(GraphDescription().node(0, GraphNodeKind::kernel, {}, std::uint64_t{1}).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("a kernel node without the parameters that its function takes") {
    GraphFixture f;
    FakeFunction function;
    proto::LaunchRecord launch{};
    launch.function = f.client.add_function(function);
    launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
    launch.parameter_bytes = 8;
    f.describe(GraphDescription().node(0, GraphNodeKind::kernel, {}, launch).bytes);
    f.instantiate(1);
    f.check_ended();
  }
  SECTION("an id of another kind") {
    GraphFixture f;
    f.client.post(proto::GraphLaunchRecord{proto::GraphExecId{kExec.value ^ (1ull << 56)}});
    f.check_ended();
  }
}

TEST_CASE("what a wrong program may put into a graph is its error") {
  SECTION("a function that is gone") {
    GraphFixture f;
    proto::LaunchRecord launch{};
    launch.function = proto::FunctionId::make(9, 1);
    f.describe(GraphDescription().node(0, GraphNodeKind::empty).node(1, GraphNodeKind::kernel, {0}, launch).bytes);
    f.instantiate(2);
    f.check_refused(CUDA_ERROR_INVALID_HANDLE, 1);
  }
  SECTION("memory of another session") {
    GraphFixture f;
    const std::uint64_t own = f.client.add_chunk(2u << 20);
    f.describe(GraphDescription().node(0, GraphNodeKind::copy, {}, copy_between(own, kDeviceLease + kLeaseBytes, 64)).bytes);
    f.instantiate(1);
    f.check_refused(CUDA_ERROR_INVALID_VALUE, 0);
  }
  SECTION("a box whose end leaves the memory, or any address space") {
    for (const std::uint64_t pitch : {std::uint64_t{1} << 20, ~std::uint64_t{0}}) {
      GraphFixture f;
      const std::uint64_t own = f.client.add_chunk(2u << 20);
      proto::GraphCopy copy = copy_between(own, own, 64);
      copy.height = 3;
      copy.destination_pitch_bytes = 64;
      copy.source_pitch_bytes = pitch;
      f.describe(GraphDescription().node(0, GraphNodeKind::copy, {}, copy).bytes);
      f.instantiate(1);
      f.check_refused(CUDA_ERROR_INVALID_VALUE, 0);
    }
  }
  SECTION("a fill beyond the end") {
    GraphFixture f;
    const std::uint64_t own = f.client.add_chunk(2u << 20);
    f.describe(GraphDescription().node(0, GraphNodeKind::fill, {}, proto::FillRecord{own, 0, 1u << 20, 1, 0, 4}).bytes);
    f.instantiate(1);
    f.check_refused(CUDA_ERROR_INVALID_VALUE, 0);
  }
  SECTION("an event that is gone") {
    GraphFixture f;
    f.describe(GraphDescription().node(0, GraphNodeKind::event_record, {}, proto::EventId::make(5, 1)).bytes);
    f.instantiate(1);
    f.check_refused(CUDA_ERROR_INVALID_HANDLE, 0);
  }
  SECTION("a graph that is none") {
    GraphFixture f;
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
  GraphFixture f;
  proto::LaunchRecord launch{};
  launch.function = proto::FunctionId::make(9, 1);
  f.describe(GraphDescription().node(0, GraphNodeKind::kernel, {}, launch).bytes);
  f.instantiate(1, 1);
  f.client.turn();
  REQUIRE(f.client.is_answered(0));
  CHECK(f.client.status(0) == CUDA_SUCCESS);
  CHECK(f.client.body<proto::GraphInstantiateReply>(0).failed_node == 1);
  f.client.post(proto::GraphSetNodesRecord{kExec, 1, 0}, proto::kNullStream, GraphDescription().node(0, GraphNodeKind::kernel, {}, launch).bytes);
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
  client.post(proto::GraphNodesRecord{kExec}, proto::kNullStream, GraphDescription().node(0, GraphNodeKind::fill, {}, fill).bytes);
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

TEST_CASE("a graph's node remembers the kernel with the most parameters that it has had, while it holds one with fewer") {
  std::vector<broker::LoadedFunction> functions(4);
  for (std::uint32_t i = 0; i < functions.size(); ++i) functions[i].parameter_bytes = 1'000 * i;
  const auto kernel = [&](std::size_t thousands) {
    broker::KernelNode node;
    node.launch.function = &functions[thousands];
    return node;
  };
  const auto bytes_of = [](const broker::KernelNode& node) { return node.launch.function->parameter_bytes; };
  struct Step {
    std::size_t held;
    std::uint32_t widest_bytes;  // 0: what it holds is the widest
  };
  broker::GraphNode node;
  node.work = kernel(2);
  for (const Step step : {Step{2, 0}, {1, 2'000}, {0, 2'000}, {1, 2'000}, {2, 0}, {3, 0}, {2, 3'000}, {0, 3'000}, {3, 0}}) {
    node.hold(kernel(step.held));
    CHECK(bytes_of(std::get<broker::KernelNode>(node.work)) == 1'000 * step.held);
    CHECK((node.widest ? bytes_of(*node.widest) : 0) == step.widest_bytes);
  }
}

}  // namespace mpsshim::test
