// SPDX-License-Identifier: Apache-2.0
// Launches with a cluster: in chains with that of their function, singly where it is not settled with theirs, and never with another.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <unistd.h>

#include "broker/executor/chains/cluster_trial.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/graph_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr FakeCluster kTwo{2, 1, 1};
constexpr FakeCluster kFour{4, 1, 1};
constexpr std::uint32_t kGrid = 8;

CUlaunchAttribute cluster_attribute(FakeCluster cluster) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {cluster[0], cluster[1], cluster[2]};
  return attribute;
}

CUlaunchAttribute policy_attribute(CUclusterSchedulingPolicy policy) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
  attribute.value.clusterSchedulingPolicyPreference = policy;
  return attribute;
}

struct Launch {
  proto::LaunchRecord record{};
  std::vector<std::byte> trailing;

  Launch(proto::FunctionId function, std::uint64_t argument, const std::vector<CUlaunchAttribute>& attributes, std::uint32_t grid_x = kGrid) {
    record.function = function;
    record.grid_x = grid_x;
    record.grid_y = record.grid_z = record.block_x = record.block_y = record.block_z = 1;
    record.parameter_bytes = 8;
    record.attribute_count = static_cast<std::uint32_t>(attributes.size());
    const auto put = [&](std::span<const std::byte> bytes) { trailing.insert(trailing.end(), bytes.begin(), bytes.end()); };
    put(std::as_bytes(std::span(&argument, 1)));
    put(std::as_bytes(std::span(attributes)));
  }
};

void post(WireClient& client, const Launch& launch, proto::StreamId stream = proto::kNullStream) {
  client.post(launch.record, stream, launch.trailing);
}

struct Fixture {
  WireExecutor executor{1, 1, {}, 1};
  WireClient client{executor, 1}, other{executor, 2};
  FakeFunction plain{"plain", {8}};
  FakeFunction product{"product", {8}};
  proto::FunctionId plain_id = client.add_function(plain);
  proto::FunctionId id = client.add_function(product);
  proto::FunctionId others_id = other.share_function(client, id);
  std::uint64_t launched = 0;

  Fixture() { executor.fake.forget_calls(); }
  void post_plain(proto::FunctionId function) { client.post_launch(function, launched++, proto::kNullStream, kGrid); }
  void post_cluster(FakeCluster cluster) { post(client, {id, launched++, {cluster_attribute(cluster)}}); }
  // What was launched since the last call: the cluster of each, and how many a graph has; 0: by itself.
  struct Launched {
    FakeCluster cluster;
    std::size_t chain_length;
    bool operator==(const Launched&) const = default;
  };
  std::vector<Launched> take() {
    std::vector<Launched> launches;
    for (const FakeCall& call : executor.fake.calls(FakeCall::launch)) launches.push_back({call.cluster, call.chain_length});
    executor.fake.forget_calls();
    CHECK(executor.fake.function_conflicts == 0);
    return launches;
  }
  using Launches = std::vector<Launched>;
};

}  // namespace

TEST_CASE("launches with a cluster are in chains with the others, each with what it was launched with") {
  Fixture f;
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
  CHECK(f.take() == Fixture::Launches{{kNoCluster, 6}, {kTwo, 6}, {kNoCluster, 6}, {kTwo, 6}, {kNoCluster, 6}, {kTwo, 6}});
  CHECK(f.product.cluster == kTwo);
  CHECK(f.plain.cluster == kNoCluster);
}

TEST_CASE("a prepared graph that is used again has the clusters of its new launches") {
  Fixture f;
  f.post_cluster(kTwo);
  f.post_plain(f.plain_id);
  f.client.turn();
  f.post_cluster(kTwo);  // the same function in the same place, with another argument
  f.post_plain(f.plain_id);
  f.client.turn();
  f.post_plain(f.plain_id);  // each in the other's place
  f.post_cluster(kTwo);
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kTwo, 2}, {kNoCluster, 2}, {kTwo, 2}, {kNoCluster, 2}, {kNoCluster, 2}, {kTwo, 2}});
}

TEST_CASE("two clients that launch a function in different clusters get theirs, and so does one that launches it without") {
  Fixture f;
  f.post_cluster(kTwo);
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kTwo, 1}});
  SECTION("another cluster") {
    post(f.other, {f.others_id, 0, {cluster_attribute(kFour)}});
    f.other.turn();
    CHECK(f.take() == Fixture::Launches{{kFour, 0}});
  }
  SECTION("none") {
    f.other.post_launch(f.others_id, 0, proto::kNullStream, 3);
    f.other.turn();
    CHECK(f.take() == Fixture::Launches{{kNoCluster, 1}});
  }
  SECTION("another way to spread it") {
    post(f.other, {f.others_id, 0, {cluster_attribute(kTwo), policy_attribute(CU_CLUSTER_SCHEDULING_POLICY_SPREAD)}});
    f.other.turn();
    CHECK(f.take() == Fixture::Launches{{kTwo, 0}});
  }
  SECTION("another attribute beside it") {
    CUlaunchAttribute priority{};
    priority.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    post(f.other, {f.others_id, 0, {cluster_attribute(kTwo), priority}});
    f.other.turn();
    CHECK(f.take() == Fixture::Launches{{kTwo, 0}});
  }
  SECTION("more blocks than any device has in a cluster") {
    post(f.other, {f.others_id, 0, {cluster_attribute({16, 1, 1})}, 32});
    f.other.turn();
    CHECK(f.take() == Fixture::Launches{{{16, 1, 1}, 0}});
  }
  SECTION("cooperatively") {
    Launch launch{f.others_id, 0, {cluster_attribute(kTwo)}};
    launch.record.flags = proto::LaunchFlag::cooperative;
    post(f.other, launch);
    f.other.turn();
    CHECK(f.take() == Fixture::Launches{{kTwo, 0}});
  }
  CHECK(f.product.cluster == kNoCluster);
  // In the node that has the function with a cluster.
  f.post_plain(f.id);
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kNoCluster, 1}});
  f.post_cluster(kTwo);
  f.post_plain(f.plain_id);
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kTwo, 0}, {kNoCluster, 1}});
  CHECK(f.product.cluster == kNoCluster);  // for good
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
  CHECK(f.other.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("a function whose cluster is in its image is in no chain") {
  Fixture f;
  auto loaded = std::make_unique<broker::LoadedFunction>();
  loaded->handle = reinterpret_cast<CUfunction>(&f.product);
  loaded->parameters.push_back({0, 8});
  loaded->parameter_bytes = 8;
  loaded->has_fixed_cluster = true;
  const proto::FunctionId fixed = f.client.add_function(std::move(loaded));
  for (const proto::FunctionId function : {f.plain_id, f.plain_id, fixed, f.plain_id, f.plain_id}) f.post_plain(function);
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kNoCluster, 2}, {kNoCluster, 2}, {kNoCluster, 0}, {kNoCluster, 2}, {kNoCluster, 2}});
}

TEST_CASE("a function that was launched without a cluster never gets one") {
  Fixture f;
  f.post_plain(f.id);
  f.post_cluster(kTwo);
  f.post_plain(f.id);
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kNoCluster, 1}, {kTwo, 0}, {kNoCluster, 1}});
  CHECK(f.product.cluster == kNoCluster);
}

TEST_CASE("what is queued when a function's cluster goes is launched with it all the same") {
  Fixture f;
  const proto::StreamId stream = f.client.add_stream(1, CU_STREAM_NON_BLOCKING);
  f.client.post(proto::HostFunctionRecord{1, 1}, stream);
  post(f.client, {f.id, 0, {cluster_attribute(kTwo)}}, stream);
  post(f.client, {f.id, 1, {cluster_attribute(kTwo)}}, stream);
  f.client.turn();
  CHECK(f.take().empty());
  CHECK(f.product.cluster == kTwo);
  f.other.post_launch(f.others_id, 0, proto::kNullStream, 3);
  f.other.turn();
  CHECK(f.take() == Fixture::Launches{{kNoCluster, 1}});
  f.client.channel().fence(1).host_value = 1;
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kTwo, 0}, {kTwo, 0}});
}

TEST_CASE("a launch with a cluster that no graph is there for goes out by itself, with its function's cluster") {
  Fixture f;
  f.executor.fake.has_graphs = false;
  f.post_cluster(kTwo);
  f.post_plain(f.plain_id);
  f.post_cluster(kTwo);
  f.client.turn();
  for (const FakeCall& call : f.executor.fake.calls(FakeCall::launch)) CHECK(call.attributes == 0);
  CHECK(f.take() == Fixture::Launches{{kTwo, 0}, {kNoCluster, 0}, {kTwo, 0}});
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("a launch with a cluster that waits for a window has it") {
  Fixture f;
  const proto::FunctionId big = f.client.add_function(f.product, 4096);
  post(f.client, {big, 0, {cluster_attribute(kTwo)}});
  const broker::StreamSet::Issue issue = f.client.turn();
  REQUIRE(issue.needs_window);
  const auto launch = issue.needs_window->take_window_launch();
  issue.needs_window->launch_in_window(*launch);
  issue.needs_window->window_launch_done();
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kTwo, 0}});
}

TEST_CASE("a driver that does not take a function's cluster gets its launches singly, and others' in chains") {
  Fixture f;
  f.executor.fake.cluster_result = GENERATE(CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED);
  f.post_plain(f.plain_id);
  f.post_cluster(kTwo);
  f.post_plain(f.plain_id);
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kNoCluster, 1}, {kTwo, 0}, {kNoCluster, 1}});
  CHECK_FALSE(f.executor.parts->chains_refused);
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("a function whose cluster cannot be taken away is not launched in one that was not asked for") {
  Fixture f;
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
  CHECK(f.take() == Fixture::Launches{{kNoCluster, 1}});
}

TEST_CASE("occupancy is answered as for a function without a cluster, which it has again behind that") {
  Fixture f;
  f.post_cluster(kTwo);
  f.client.turn();
  f.other.call(proto::OccupancyRecord{f.others_id, proto::OccupancyQuestion::active_blocks, 32, 0, 0, 0});
  f.other.turn();
  REQUIRE(f.other.is_answered(0));
  CHECK(f.other.body<proto::OccupancyReply>(0).value == 1);
  f.post_cluster(kTwo);
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kTwo, 1}, {kTwo, 1}});
  CHECK(f.product.cluster == kTwo);
}

TEST_CASE("a kernel of a client's graph has the cluster that its node says, whatever its function was launched with") {
  const bool has_clustered_nodes = GENERATE(true, false);
  // Of the second node, the first one's being that of its function.
  const FakeCluster second = GENERATE(kTwo, kFour, kNoCluster);
  Fixture f;
  f.executor.parts->has_clustered_nodes = has_clustered_nodes;
  f.executor.fake.refuses_clustered_nodes = !has_clustered_nodes;
  f.executor.start_workers();
  f.executor.workers->add(f.client.shared_session());
  f.executor.workers->add(f.other.shared_session());
  const auto take = [&](std::size_t count) {
    CHECK(eventually([&] { return f.executor.fake.calls(FakeCall::launch).size() >= count; }));
    return f.take();
  };
  f.post_cluster(kTwo);
  CHECK(take(1) == Fixture::Launches{{kTwo, 1}});
  const auto payload = [](const Launch& launch) {
    std::vector<std::byte> bytes(sizeof launch.record + launch.trailing.size());
    std::memcpy(bytes.data(), &launch.record, sizeof launch.record);
    std::memcpy(bytes.data() + sizeof launch.record, launch.trailing.data(), launch.trailing.size());
    return bytes;
  };
  const std::vector<std::byte> in_two = payload({f.others_id, 1, {cluster_attribute(kTwo)}});
  const std::vector<std::byte> in_other =
      payload({f.others_id, 2, second == kNoCluster ? std::vector<CUlaunchAttribute>{} : std::vector{cluster_attribute(second)}});
  GraphDescription description;
  description.node(0, GraphNodeKind::kernel, {}, std::span<const std::byte>(in_two));
  description.node(1, GraphNodeKind::kernel, {0}, std::span<const std::byte>(in_other));
  f.other.post(proto::GraphNodesRecord{kExec}, proto::kNullStream, description.bytes);
  f.other.call(proto::GraphInstantiateRecord{kExec, 0, 2, 0});
  REQUIRE(eventually([&] { return f.other.is_answered(0); }));
  REQUIRE(f.other.status(0) == CUDA_SUCCESS);
  f.other.post(proto::GraphLaunchRecord{kExec});
  CHECK(take(2) == Fixture::Launches{{kTwo, 2}, {second, 2}});
  f.post_cluster(kTwo);
  const bool is_settled = has_clustered_nodes && second == kTwo;
  CHECK(take(1) == Fixture::Launches{{kTwo, is_settled ? 1u : 0u}});
  f.post_plain(f.id);
  CHECK(take(1) == Fixture::Launches{{kNoCluster, 1}});
  f.other.post(proto::GraphLaunchRecord{kExec});
  CHECK(take(2) == Fixture::Launches{{kTwo, 2}, {second, 2}});
  for (const std::uint64_t session : {1, 2}) {
    std::atomic<bool> closed{false};
    f.executor.workers->close(session, [&] { closed = true; });
    CHECK(eventually([&] { return closed.load(); }));
  }
  f.executor.workers.reset();
}

TEST_CASE("launches with a cluster stay aside with their stream") {
  Fixture f;
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

TEST_CASE("whether chains take clusters is found out of the driver") {
  Fixture f;
  CUfunction width = nullptr;
  REQUIRE((*f.executor.driver)->cuModuleGetFunction(&width, nullptr, "mpsshim_cluster_width") == CUDA_SUCCESS);
  FakeDriver& fake = f.executor.fake;
  broker::ExecutorParts& parts = *f.executor.parts;
  CHECK(parts.has_chained_clusters);
  CHECK(parts.has_clustered_nodes);
  SECTION("nodes are not given them twice") {
    fake.refuses_clustered_nodes = true;
    broker::try_clusters(parts, width);
    CHECK(parts.has_chained_clusters);
    CHECK_FALSE(parts.has_clustered_nodes);
    return;
  }
  SECTION("nodes do not take them") { fake.ignores_clusters = true; }
  SECTION("nodes keep those of functions before") { fake.keeps_clusters = true; }
  SECTION("functions do not take them") { fake.cluster_result = CUDA_ERROR_NOT_SUPPORTED; }
  SECTION("functions do not give them up") { fake.cluster_removal_result = CUDA_ERROR_NOT_SUPPORTED; }
  SECTION("there are no graphs") { fake.has_graphs = false; }
  broker::try_clusters(parts, width);
  CHECK_FALSE(parts.has_chained_clusters);
  CHECK_FALSE(parts.has_clustered_nodes);
  reinterpret_cast<FakeFunction*>(width)->cluster = kNoCluster;
  fake.has_graphs = true;
  fake.ignores_clusters = fake.keeps_clusters = false;
  fake.cluster_result = fake.cluster_removal_result = CUDA_SUCCESS;
  fake.forget_calls();
  f.post_plain(f.plain_id);
  f.post_cluster(kTwo);
  f.client.turn();
  CHECK(f.take() == Fixture::Launches{{kNoCluster, 1}, {kTwo, 0}});
}

// NVIDIA's driver does not keep the two apart: see QuietWindow::exclusively().
TEST_CASE("a function's cluster changes while no other worker launches anything") {
  constexpr std::size_t kFunctions = 30;
  WireExecutor executor;
  FakeFunction flooding{"flooding", {8}};
  std::vector<FakeFunction> functions(kFunctions, FakeFunction{"f", {8}});
  WireClient launching(executor, 1), changing(executor, 2);  // the second is served by this thread
  const proto::FunctionId launched = launching.add_function(flooding);
  executor.start_workers();
  executor.workers->add(launching.shared_session());
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    for (std::uint64_t argument = 1; !stop; ++argument) {
      if (launching.has_room()) launching.post_launch(launched, argument);
    }
  });
  for (FakeFunction& function : functions) {
    const proto::FunctionId id = changing.add_function(function);
    post(changing, {id, 2, {cluster_attribute(kTwo)}});
    changing.turn();
    CHECK(function.cluster == kTwo);
    changing.post_launch(id, 0);
    changing.turn();
    CHECK(function.cluster == kNoCluster);
  }
  stop = true;
  flood.join();
  CHECK(executor.fake.function_conflicts == 0);
  std::atomic<bool> closed{false};
  executor.workers->close(1, [&] { closed = true; });
  CHECK(eventually([&] { return closed.load(); }));
  executor.workers.reset();
}

// Each session is another worker's. Functions are settled, and unsettled again, while the others launch these and others.
TEST_CASE("several workers launch the same functions, and each launch has its own cluster") {
  constexpr unsigned kFunctions = 30;
  constexpr unsigned kAtOnce = 10;  // of these; in each round the next one comes, and the first one goes
  constexpr std::size_t kClients = 3;
  WireExecutor executor(1, kClients);
  std::vector<FakeFunction> functions(kFunctions, FakeFunction{"f", {8}});
  std::vector<std::unique_ptr<WireClient>> clients;
  std::vector<std::vector<proto::FunctionId>> ids(kClients);
  for (std::size_t i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<WireClient>(executor, i + 1));
    for (unsigned j = 0; j < kFunctions; ++j)
      ids[i].push_back(i == 0 ? clients[0]->add_function(functions[j]) : clients[i]->share_function(*clients[0], ids[0][j]));
  }
  executor.fake.forget_calls();
  executor.start_workers();
  for (const auto& client : clients) executor.workers->add(client->shared_session());
  // The argument says what it was launched with.
  const auto flood = [&](std::size_t index) {
    WireClient& client = *clients[index];
    for (unsigned first = 0; first + kAtOnce <= kFunctions; ++first) {
      for (unsigned j = first; j < first + kAtOnce; ++j) {
        while (!client.has_room()) std::this_thread::yield();
        const bool is_odd = index != 0 && j < first + kAtOnce / 4;
        const FakeCluster cluster = !is_odd ? kTwo : index == 1 ? kFour : kNoCluster;
        post(client, {ids[index][j], cluster[0], cluster == kNoCluster ? std::vector<CUlaunchAttribute>{} : std::vector{cluster_attribute(cluster)}});
      }
    }
    client.post_fence(1);
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kClients; ++i) threads.emplace_back(flood, i);
  for (std::thread& thread : threads) thread.join();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);  // each change waits for all workers, on busy processors for long
  const auto are_done = [&] { return std::ranges::all_of(clients, [](const auto& client) { return client->fence() == 1; }); };
  while (!are_done() && std::chrono::steady_clock::now() < end) usleep(1'000);
  CHECK(are_done());
  std::size_t chained = 0, wrong = 0;
  const std::vector<FakeCall> launches = executor.fake.calls(FakeCall::launch);
  for (const FakeCall& call : launches) {
    std::uint64_t expected = 0;
    std::memcpy(&expected, call.parameters.data(), sizeof expected);
    wrong += call.cluster[0] != expected ? 1 : 0;
    chained += call.chain != 0 && expected != 0 ? 1 : 0;
  }
  CHECK(launches.size() == kClients * (kFunctions - kAtOnce + 1) * kAtOnce);
  CHECK(wrong == 0);
  CHECK(chained > launches.size() / 8);
  CHECK(executor.fake.function_conflicts == 0);
  for (std::size_t i = 0; i < kClients; ++i) {
    CHECK(clients[i]->take_async_error() == CUDA_SUCCESS);
    std::atomic<bool> closed{false};
    executor.workers->close(i + 1, [&] { closed = true; });
    CHECK(eventually([&] { return closed.load(); }));
  }
  executor.workers.reset();
}

}  // namespace mpsshim::test
