// SPDX-License-Identifier: Apache-2.0
// Launches with a cluster: in chains with that of their function, singly where it is not settled with theirs, and never with another.
#include <algorithm>
#include <memory>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/wire/support/cluster_fixture.hpp"

namespace mpsshim::test {

TEST_CASE("launches with a cluster are in chains with the others, each with what it was launched with") {
  ClusterFixture f;
  REQUIRE(f.executor.parts->has_chained_clusters);
  const std::vector<std::vector<CUlaunchAttribute>> spellings{
      {cluster_attribute(kTwo)},
      {cluster_attribute(kTwo), policy_attribute(CU_CLUSTER_SCHEDULING_POLICY_DEFAULT)},
      {policy_attribute(CU_CLUSTER_SCHEDULING_POLICY_DEFAULT), CUlaunchAttribute{}, cluster_attribute(kTwo)}};
  for (const auto& attributes : spellings) {
    f.post_plain(f.plain_id);
    post(f.client, {f.id, f.launched++, attributes});
  }
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kNoCluster, 6}, {kTwo, 6}, {kNoCluster, 6}, {kTwo, 6}, {kNoCluster, 6}, {kTwo, 6}});
  CHECK(f.product.cluster == kTwo);
  CHECK(f.plain.cluster == kNoCluster);
}

TEST_CASE("a prepared graph that is used again has the clusters of its new launches") {
  ClusterFixture f;
  f.post_cluster(kTwo);
  f.post_plain(f.plain_id);
  f.client.turn();
  f.post_cluster(kTwo);  // the same function in the same place, with another argument
  f.post_plain(f.plain_id);
  f.client.turn();
  f.post_plain(f.plain_id);  // each in the other's place
  f.post_cluster(kTwo);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kTwo, 2}, {kNoCluster, 2}, {kTwo, 2}, {kNoCluster, 2}, {kNoCluster, 2}, {kTwo, 2}});
}

TEST_CASE("two clients that launch a function in different clusters get theirs, and so does one that launches it without") {
  ClusterFixture f;
  f.post_cluster(kTwo);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kTwo, 1}});
  SECTION("another cluster") {
    post(f.other, {f.others_id, 0, {cluster_attribute(kFour)}});
    f.other.turn();
    CHECK(f.take() == ClusterFixture::Launches{{kFour, 0}});
  }
  SECTION("none") {
    f.other.post_launch(f.others_id, 0, proto::kNullStream, 3);
    f.other.turn();
    CHECK(f.take() == ClusterFixture::Launches{{kNoCluster, 1}});
  }
  SECTION("another way to spread it") {
    post(f.other, {f.others_id, 0, {cluster_attribute(kTwo), policy_attribute(CU_CLUSTER_SCHEDULING_POLICY_SPREAD)}});
    f.other.turn();
    CHECK(f.take() == ClusterFixture::Launches{{kTwo, 0}});
  }
  SECTION("another attribute beside it") {
    CUlaunchAttribute priority{};
    priority.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    post(f.other, {f.others_id, 0, {cluster_attribute(kTwo), priority}});
    f.other.turn();
    CHECK(f.take() == ClusterFixture::Launches{{kTwo, 0}});
  }
  SECTION("more blocks than any device has in a cluster") {
    post(f.other, {f.others_id, 0, {cluster_attribute({16, 1, 1})}, 32});
    f.other.turn();
    CHECK(f.take() == ClusterFixture::Launches{{{16, 1, 1}, 0}});
  }
  SECTION("cooperatively") {
    Launch launch{f.others_id, 0, {cluster_attribute(kTwo)}};
    launch.record.flags = proto::LaunchFlag::cooperative;
    post(f.other, launch);
    f.other.turn();
    CHECK(f.take() == ClusterFixture::Launches{{kTwo, 0}});
  }
  CHECK(f.product.cluster == kNoCluster);
  // In the node that has the function with a cluster.
  f.post_plain(f.id);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kNoCluster, 1}});
  f.post_cluster(kTwo);
  f.post_plain(f.plain_id);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kTwo, 0}, {kNoCluster, 1}});
  CHECK(f.product.cluster == kNoCluster);  // for good
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
  CHECK(f.other.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("a function whose cluster is in its image is in no chain") {
  ClusterFixture f;
  auto loaded = std::make_unique<broker::LoadedFunction>();
  loaded->handle = reinterpret_cast<CUfunction>(&f.product);
  loaded->parameters.push_back({0, 8});
  loaded->parameter_bytes = 8;
  loaded->has_fixed_cluster = true;
  const proto::FunctionId fixed = f.client.add_function(std::move(loaded));
  for (const proto::FunctionId function : {f.plain_id, f.plain_id, fixed, f.plain_id, f.plain_id}) f.post_plain(function);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kNoCluster, 2}, {kNoCluster, 2}, {kNoCluster, 0}, {kNoCluster, 2}, {kNoCluster, 2}});
}

TEST_CASE("a function that was launched without a cluster never gets one") {
  ClusterFixture f;
  f.post_plain(f.id);
  f.post_cluster(kTwo);
  f.post_plain(f.id);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kNoCluster, 1}, {kTwo, 0}, {kNoCluster, 1}});
  CHECK(f.product.cluster == kNoCluster);
}

TEST_CASE("what is queued when a function's cluster goes is launched with it all the same") {
  ClusterFixture f;
  const proto::StreamId stream = f.client.add_stream(1, CU_STREAM_NON_BLOCKING);
  f.client.post(proto::HostFunctionRecord{1, 1}, stream);
  post(f.client, {f.id, 0, {cluster_attribute(kTwo)}}, stream);
  post(f.client, {f.id, 1, {cluster_attribute(kTwo)}}, stream);
  f.client.turn();
  CHECK(f.take().empty());
  CHECK(f.product.cluster == kTwo);
  f.other.post_launch(f.others_id, 0, proto::kNullStream, 3);
  f.other.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kNoCluster, 1}});
  f.client.channel().fence(1).host_value = 1;
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kTwo, 0}, {kTwo, 0}});
}

TEST_CASE("a launch with a cluster that no graph is there for goes out by itself, with its function's cluster") {
  ClusterFixture f;
  f.executor.fake.has_graphs = false;
  f.post_cluster(kTwo);
  f.post_plain(f.plain_id);
  f.post_cluster(kTwo);
  f.client.turn();
  for (const FakeCall& call : f.executor.fake.calls(FakeCall::launch)) CHECK(call.attributes == 0);
  CHECK(f.take() == ClusterFixture::Launches{{kTwo, 0}, {kNoCluster, 0}, {kTwo, 0}});
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("a launch with a cluster that waits for a window has it") {
  ClusterFixture f;
  const proto::FunctionId big = f.client.add_function(f.product, 4096);
  post(f.client, {big, 0, {cluster_attribute(kTwo)}});
  const broker::StreamSet::Issue issue = f.client.turn();
  REQUIRE(issue.needs_window);
  const auto launch = issue.needs_window->take_window_launch();
  issue.needs_window->launch_in_window(*launch);
  issue.needs_window->window_launch_done();
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kTwo, 0}});
}

TEST_CASE("a driver that does not take a function's cluster gets its launches singly, and others' in chains") {
  ClusterFixture f;
  f.executor.fake.cluster_result = GENERATE(CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED);
  f.post_plain(f.plain_id);
  f.post_cluster(kTwo);
  f.post_plain(f.plain_id);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kNoCluster, 1}, {kTwo, 0}, {kNoCluster, 1}});
  CHECK_FALSE(f.executor.parts->chains_refused);
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("a function whose cluster cannot be taken away is not launched in one that was not asked for") {
  ClusterFixture f;
  f.post_cluster(kTwo);
  f.client.turn();
  f.take();
  f.executor.fake.cluster_removal_result = CUDA_ERROR_NOT_PERMITTED;
  f.post_plain(f.id);
  f.client.turn();
  CHECK(f.take().empty());
  CHECK(f.client.take_async_error() == CUDA_ERROR_NOT_PERMITTED);
  post(f.other, {f.others_id, 0, {cluster_attribute(kTwo)}});
  f.other.turn();
  CHECK(f.other.take_async_error() == CUDA_ERROR_NOT_PERMITTED);  // whether the driver has it still is not known
  f.executor.fake.cluster_removal_result = CUDA_SUCCESS;
  f.post_plain(f.id);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kNoCluster, 1}});
}

TEST_CASE("occupancy is answered as for a function without a cluster, which it has again behind that") {
  ClusterFixture f;
  f.post_cluster(kTwo);
  f.client.turn();
  f.other.call(proto::OccupancyRecord{f.others_id, proto::OccupancyQuestion::active_blocks, 32, 0, 0, 0});
  f.other.turn();
  REQUIRE(f.other.is_answered(0));
  CHECK(f.other.body<proto::OccupancyReply>(0).value == 1);
  f.post_cluster(kTwo);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kTwo, 1}, {kTwo, 1}});
  CHECK(f.product.cluster == kTwo);
}

TEST_CASE("launches with a cluster stay aside with their stream") {
  ClusterFixture f;
  f.client.session().home().change_to(1);
  f.client.session().home().move_streams();
  for (int round = 0; round < 2; ++round) {
    f.post_plain(f.plain_id);
    f.post_cluster(kTwo);
    f.client.turn();
  }
  const std::vector<FakeCall> launches = f.executor.fake.calls(FakeCall::launch);
  REQUIRE(launches.size() == 4);
  CHECK(std::ranges::all_of(launches, [](const FakeCall& call) { return call.stream_context != nullptr && call.chain != 0; }));
  CHECK(launches[3].cluster == kTwo);
}

}  // namespace mpsshim::test
