// SPDX-License-Identifier: Apache-2.0
// Clusters of functions beside clients' graphs and beside other workers' launches, and whether the driver takes them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <unistd.h>

#include "broker/executor/chains/cluster_trial.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/cluster_fixture.hpp"
#include "tests/wire/support/graph_fixture.hpp"

namespace mpsshim::test {

TEST_CASE("a kernel of a client's graph has the cluster that its node says, whatever its function was launched with") {
  const bool has_clustered_nodes = GENERATE(true, false);
  // Of the second node, the first one's being that of its function.
  const FakeCluster second = GENERATE(kTwo, kFour, kNoCluster);
  ClusterFixture f;
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
  CHECK(take(1) == ClusterFixture::Launches{{kTwo, 1}});
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
  CHECK(take(2) == ClusterFixture::Launches{{kTwo, 2}, {second, 2}});
  f.post_cluster(kTwo);
  const bool is_settled = has_clustered_nodes && second == kTwo;
  CHECK(take(1) == ClusterFixture::Launches{{kTwo, is_settled ? 1u : 0u}});
  f.post_plain(f.id);
  CHECK(take(1) == ClusterFixture::Launches{{kNoCluster, 1}});
  f.other.post(proto::GraphLaunchRecord{kExec});
  CHECK(take(2) == ClusterFixture::Launches{{kTwo, 2}, {second, 2}});
  for (const std::uint64_t session : {1, 2}) {
    std::atomic<bool> closed{false};
    f.executor.workers->close(session, [&] { closed = true; });
    CHECK(eventually([&] { return closed.load(); }));
  }
  f.executor.workers.reset();
}

TEST_CASE("whether chains take clusters is found out of the driver") {
  ClusterFixture f;
  broker::ClusterTrialKernels kernels;
  REQUIRE((*f.executor.driver)->cuModuleGetFunction(&kernels.width, nullptr, "mpsshim_cluster_width") == CUDA_SUCCESS);
  REQUIRE((*f.executor.driver)->cuModuleGetFunction(&kernels.reset, nullptr, "mpsshim_reset") == CUDA_SUCCESS);
  FakeDriver& fake = f.executor.fake;
  broker::ExecutorParts& parts = *f.executor.parts;
  CHECK(parts.has_chained_clusters);
  CHECK(parts.has_clustered_nodes);
  SECTION("nodes are not given them twice") {
    fake.refuses_clustered_nodes = true;
    broker::try_clusters(parts, kernels);
    CHECK(parts.has_chained_clusters);
    CHECK_FALSE(parts.has_clustered_nodes);
    return;
  }
  SECTION("nodes do not take them") { fake.ignores_clusters = true; }
  SECTION("nodes keep those of functions before") { fake.keeps_clusters = true; }
  SECTION("functions do not take them") { fake.cluster_result = CUDA_ERROR_NOT_SUPPORTED; }
  SECTION("functions do not give them up") { fake.cluster_removal_result = CUDA_ERROR_NOT_SUPPORTED; }
  SECTION("there are no graphs") { fake.has_graphs = false; }
  broker::try_clusters(parts, kernels);
  CHECK_FALSE(parts.has_chained_clusters);
  CHECK_FALSE(parts.has_clustered_nodes);
  reinterpret_cast<FakeFunction*>(kernels.width)->cluster = kNoCluster;
  fake.has_graphs = true;
  fake.ignores_clusters = fake.keeps_clusters = false;
  fake.cluster_result = fake.cluster_removal_result = CUDA_SUCCESS;
  fake.forget_calls();
  f.post_plain(f.plain_id);
  f.post_cluster(kTwo);
  f.client.turn();
  CHECK(f.take() == ClusterFixture::Launches{{kNoCluster, 1}, {kTwo, 0}});
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
