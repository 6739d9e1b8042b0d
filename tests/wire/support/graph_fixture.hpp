// SPDX-License-Identifier: Apache-2.0
// For tests of executable graphs: a description node by node, as clients send it, and a client that sends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/graph_nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {

using proto::GraphNodeHeader;
using proto::GraphNodeKind;

inline constexpr auto kExec = proto::GraphExecId::make(3, 1);

struct GraphDescription {
  std::vector<std::byte> bytes;

  template <typename Payload>
  GraphDescription& node(std::uint32_t index, GraphNodeKind kind, const std::vector<std::uint32_t>& before, const Payload& payload) {
    return node(index, kind, before, std::as_bytes(std::span(&payload, 1)));
  }
  GraphDescription& node(std::uint32_t index, GraphNodeKind kind, const std::vector<std::uint32_t>& before = {},
                         std::span<const std::byte> payload = {}) {
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

struct GraphFixture {
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

[[nodiscard]] inline proto::GraphCopy copy_between(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) {
  proto::GraphCopy copy;
  copy.destination = destination;
  copy.source = source;
  copy.width_bytes = bytes;
  copy.height = copy.depth = 1;
  return copy;
}

}  // namespace mpsshim::test
