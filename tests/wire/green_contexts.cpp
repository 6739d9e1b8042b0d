// SPDX-License-Identifier: Apache-2.0
// Green contexts on a real worker thread: chains go by stream and context, nothing of one is used for another, and all of it ends.
#include <chrono>
#include <cstring>
#include <functional>
#include <set>

#include <unistd.h>

#include "proto/graph_nodes.hpp"
#include "proto/resource_share.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr std::uint16_t kSlot = 1;

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeFunction function{"f", {8}};
  proto::FunctionId id = client.add_function(function);
  std::uint32_t fences = 0;
  std::atomic<bool> is_closed{false};

  Fixture() {
    executor.start_workers();
    executor.workers->add(client.shared_session());
  }
  // A check that fails leaves the test early: the worker must be gone before its session, and the session's jobs, which report to it, before that.
  ~Fixture() {
    if (!is_closed) (void)end_session();
    executor.workers.reset();
  }
  void close() { REQUIRE(end_session()); }
  bool end_session() {
    executor.workers->close(1, [this] { is_closed = true; });
    return eventually([this] { return is_closed.load(); });
  }

  template <typename Record>
  CUresult ask(const Record& record, std::span<const proto::ResourceShare> shares) {
    client.call(record, kSlot, std::as_bytes(shares));
    REQUIRE(eventually([&] { return client.is_answered(kSlot) || client.has_failed(); }));
    return client.has_failed() ? CUDA_ERROR_MPS_RPC_FAILURE : client.status(kSlot);
  }
  CUresult make_green(std::uint32_t index, proto::ResourceShare share = group(0)) {
    return ask(proto::GreenContextCreateRecord{green(index)}, std::span(&share, 1));
  }
  void add_stream(std::uint32_t index, std::uint32_t of_green) { client.post(proto::GreenStreamCreateRecord{green(of_green), 0, 0}, stream(index)); }
  void run(std::uint32_t index, std::uint64_t launches) {
    for (std::uint64_t i = 0; i < launches; ++i) client.post_launch(id, i, stream(index));
    client.post_fence(++fences, stream(index));
    REQUIRE(eventually([&] { return client.fence(index) == fences; }));
  }
  std::vector<FakeCall> launches() { return executor.fake.calls(FakeCall::launch); }

  static proto::GreenContextId green(std::uint32_t index) { return proto::GreenContextId::make(index, 1); }
  static proto::StreamId stream(std::uint32_t index) { return proto::StreamId::make(index, 1); }
  static proto::ResourceShare group(std::int32_t part) { return {{}, 1, 2, 0, 4, part}; }
};

}  // namespace

TEST_CASE("a graph made for one context is never launched in a stream of another") {
  Fixture f;
  REQUIRE(f.make_green(1) == CUDA_SUCCESS);
  REQUIRE(f.make_green(2, Fixture::group(1)) == CUDA_SUCCESS);
  f.client.add_stream(1);
  f.add_stream(2, 1);
  f.add_stream(3, 2);
  f.add_stream(4, 2);
  std::set<CUcontext> chained;
  unsigned misplaced = 0;
  // Again and again: a green context's graphs are made as they are found wanting.
  const bool all_are_chained = eventually([&] {
    for (const std::uint32_t stream : {1u, 2u, 3u, 4u}) f.run(stream, 1 + stream % 3);
    for (const FakeCall& call : f.executor.fake.calls()) {
      if (call.chain == 0) continue;
      if (call.graph_context != call.stream_context) ++misplaced;
      if (call.kind == FakeCall::launch) chained.insert(call.stream_context);
    }
    return misplaced != 0 || chained.size() == 3;  // the executor's, and both green ones
  });
  CHECK(all_are_chained);
  CHECK(misplaced == 0);
  f.close();
  CHECK(eventually([&] { return f.executor.fake.greens == 0; }));
  CHECK(f.executor.fake.green_streams == 0);
}

TEST_CASE("in a green context launches with a cluster go out by themselves") {
  Fixture f;
  FakeFunction product{"product", {8}};
  const proto::FunctionId product_id = f.client.add_function(product);
  REQUIRE(f.make_green(1) == CUDA_SUCCESS);
  f.add_stream(1, 1);
  f.run(1, 1);
  struct {
    std::uint64_t argument = 1;
    CUlaunchAttribute cluster{};
  } trailing;
  trailing.cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  trailing.cluster.value.clusterDim = {2, 1, 1};
  proto::LaunchRecord launch{};
  launch.function = product_id;
  launch.grid_x = 4;
  launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
  launch.parameter_bytes = sizeof trailing.argument;
  launch.attribute_count = 1;
  f.client.post(launch, Fixture::stream(1), std::as_bytes(std::span(&trailing, 1)));
  f.run(1, 0);
  const std::vector<FakeCall> launches = f.launches();
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].chain != 0);
  CHECK(launches[1].function == &product);
  CHECK(launches[1].chain == 0);
  CHECK(launches[1].cluster == FakeCluster{2, 1, 1});
  CHECK(launches[1].stream_context != nullptr);
  f.close();
}

TEST_CASE("a graph's kernel in a green context is changed where that is current") {
  struct KernelNode {
    proto::GraphNodeHeader header;
    proto::LaunchRecord launch;
    std::uint64_t argument;
    proto::GreenContextId green;
  };
  Fixture f;
  REQUIRE(f.make_green(1) == CUDA_SUCCESS);
  constexpr auto kExec = proto::GraphExecId::make(3, 1);
  KernelNode node{{0, proto::GraphNodeKind::kernel, 1, 0, sizeof(KernelNode) - sizeof(proto::GraphNodeHeader)}, {}, 7, Fixture::green(1)};
  node.launch.function = f.id;
  node.launch.grid_x = node.launch.grid_y = node.launch.grid_z = node.launch.block_x = node.launch.block_y = node.launch.block_z = 1;
  node.launch.parameter_bytes = sizeof node.argument;
  node.launch.flags = proto::LaunchFlag::of_green_context;
  f.client.post(proto::GraphNodesRecord{kExec}, proto::kNullStream, std::as_bytes(std::span(&node, 1)));
  REQUIRE(f.ask(proto::GraphInstantiateRecord{kExec, 0, 1, 0}, {}) == CUDA_SUCCESS);
  node.argument = 8;
  f.client.post(proto::GraphSetNodesRecord{kExec, 0, 0}, proto::kNullStream, std::as_bytes(std::span(&node, 1)));
  f.client.post(proto::GraphLaunchRecord{kExec});
  f.client.post_fence(1);
  REQUIRE(eventually([&] { return f.client.fence() == 1; }));
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
  const std::vector<FakeCall> launches = f.launches();
  REQUIRE(launches.size() == 1);
  std::uint64_t argument = 0;
  std::memcpy(&argument, launches.front().parameters.data(), sizeof argument);
  CHECK(argument == 8);
  CHECK(launches.front().graph_context != nullptr);
  f.close();
}

TEST_CASE("streams of a green context end with it and are not used again") {
  Fixture f;
  REQUIRE(f.make_green(1) == CUDA_SUCCESS);
  f.add_stream(1, 1);
  f.run(1, 5);
  REQUIRE(f.executor.fake.green_streams == 1);
  f.client.post(proto::StreamDestroyRecord{}, Fixture::stream(1));
  f.client.post(proto::GreenContextDestroyRecord{Fixture::green(1)});
  REQUIRE(eventually([&] { return f.executor.fake.greens == 0; }));
  CHECK(f.executor.fake.green_streams == 0);
  f.client.post(proto::StreamCreateRecord{CU_STREAM_NON_BLOCKING, 0}, proto::StreamId::make(1, 2));
  f.executor.fake.forget_calls();
  f.client.post_launch(f.id, 7, proto::StreamId::make(1, 2));
  REQUIRE(eventually([&] { return f.launches().size() == 1; }));
  CHECK(f.launches()[0].stream_context == nullptr);
  f.close();
}

TEST_CASE("streams of a green context are ordered with no NULL stream") {
  Fixture f;
  REQUIRE(f.make_green(1) == CUDA_SUCCESS);
  f.add_stream(1, 1);
  f.add_stream(2, 1);
  f.client.add_stream(3);  // a blocking one, which is
  f.run(2, 1);
  f.executor.fake.hold_work();
  f.executor.fake.forget_calls();
  f.client.post_launch(f.id, 1, Fixture::stream(1));
  f.client.post_launch(f.id, 2, Fixture::stream(2));
  f.client.post_launch(f.id, 3, proto::kNullStream);
  f.client.post_launch(f.id, 4, Fixture::stream(1));
  REQUIRE(eventually([&] { return f.launches().size() == 4; }));
  CHECK(f.executor.fake.calls(FakeCall::wait).empty());
  f.client.post_launch(f.id, 5, Fixture::stream(3));
  CHECK(eventually([&] { return f.executor.fake.calls(FakeCall::wait).size() == 1; }));
  f.executor.fake.resume_work();
  f.close();
}

TEST_CASE("green contexts of a session are bounded, and what is none is refused") {
  Fixture f;
  for (std::uint32_t i = 1; i <= broker::kMaxGreenContexts; ++i) REQUIRE(f.make_green(i) == CUDA_SUCCESS);
  CHECK(f.make_green(40) == CUDA_ERROR_OUT_OF_MEMORY);
  proto::ResourceShare of_nobody = Fixture::group(0);
  of_nobody.origin = Fixture::green(41);
  CHECK(f.make_green(42, of_nobody) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(f.ask(proto::ResourceDescribeRecord{}, std::span(&of_nobody, 1)) == CUDA_ERROR_INVALID_HANDLE);
  for (const std::int32_t part : {2, 4'711, -3}) {
    const proto::ResourceShare wrong = Fixture::group(part);
    CHECK(f.ask(proto::ResourceDescribeRecord{}, std::span(&wrong, 1)) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  }
  proto::ResourceShare many = Fixture::group(0);
  many.groups = proto::kMaxResourceGroups + 1;
  CHECK(f.ask(proto::ResourceDescribeRecord{}, std::span(&many, 1)) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CHECK_FALSE(f.client.has_failed());
  f.client.post(proto::GreenContextDestroyRecord{Fixture::green(1)});
  CHECK(f.make_green(1 + broker::kMaxGreenContexts) == CUDA_SUCCESS);
  f.close();
  CHECK(eventually([&] { return f.executor.fake.greens == 0; }));
}

TEST_CASE("records about green contexts that no correct client sends end the session") {
  Fixture f;
  REQUIRE(f.make_green(1) == CUDA_SUCCESS);
  const std::byte few[31] = {};
  SECTION("half a share") { f.client.call(proto::ResourceDescribeRecord{}, kSlot, few); }
  SECTION("no share") { f.client.call(proto::GreenContextCreateRecord{Fixture::green(2)}, kSlot); }
  SECTION("an origin of another kind") {
    proto::ResourceShare share = Fixture::group(0);
    share.origin.value = Fixture::stream(1).value;
    f.client.call(proto::ResourceSplitRecord{1, 0, 1, 0}, kSlot, std::as_bytes(std::span(&share, 1)));
  }
  SECTION("more groups than there can be") {
    const proto::ResourceShare share = Fixture::group(0);
    f.client.call(proto::ResourceSplitRecord{proto::kMaxResourceGroups + 1, 0, 1, 0}, kSlot, std::as_bytes(std::span(&share, 1)));
  }
  SECTION("a stream id beyond the fence words") {
    f.client.post(proto::GreenStreamCreateRecord{Fixture::green(1), 0, 0}, proto::StreamId::make(1u << 20, 1));
  }
  CHECK(eventually([&] { return f.client.has_failed(); }));
  f.close();
}

}  // namespace mpsshim::test
