// SPDX-License-Identifier: Apache-2.0
// For tests of launches with a cluster: what a client sends, and what the driver was given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {

inline constexpr FakeCluster kTwo{2, 1, 1};
inline constexpr FakeCluster kFour{4, 1, 1};
inline constexpr std::uint32_t kGrid = 8;

[[nodiscard]] inline CUlaunchAttribute cluster_attribute(FakeCluster cluster) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {cluster[0], cluster[1], cluster[2]};
  return attribute;
}

[[nodiscard]] inline CUlaunchAttribute policy_attribute(CUclusterSchedulingPolicy policy) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
  attribute.value.clusterSchedulingPolicyPreference = policy;
  return attribute;
}

// The record of a launch with one 8-byte parameter, and what comes behind it.
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

inline void post(WireClient& client, const Launch& launch, proto::StreamId stream = proto::kNullStream) {
  client.post(launch.record, stream, launch.trailing);
}

// Two clients that have the same function, and one of them another that is launched without clusters.
struct ClusterFixture {
  WireExecutor executor{1, 1, {}, 1};
  WireClient client{executor, 1}, other{executor, 2};
  FakeFunction plain{"plain", {8}};
  FakeFunction product{"product", {8}};
  proto::FunctionId plain_id = client.add_function(plain);
  proto::FunctionId id = client.add_function(product);
  proto::FunctionId others_id = other.share_function(client, id);
  std::uint64_t launched = 0;

  ClusterFixture() { executor.fake.forget_calls(); }
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

}  // namespace mpsshim::test
