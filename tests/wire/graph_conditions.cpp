// SPDX-License-Identifier: Apache-2.0
// Conditional nodes: their descriptions are checked as those of other nodes, and handles are of graphs that are there.
#include "tests/wire/support/graph_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr auto kConditioned = proto::GraphId::make(4, 1);
constexpr std::uint64_t kHandle = 77;

struct ConditionFixture : GraphFixture {
  ConditionFixture() {
    (void)client.session().conditions().find_or_add(*executor.driver, kConditioned);
    if (!client.session().conditions().add(kConditioned, kHandle)) throw std::bad_alloc();
  }
};

// A conditional node's payload with one body.
std::vector<std::byte> condition(std::uint64_t handle, std::uint32_t type, std::uint32_t node_count, std::span<const std::byte> body) {
  GraphDescription payload;
  const proto::GraphCondition head{handle, type, 1};
  const proto::GraphBody lengths{node_count, static_cast<std::uint32_t>(body.size())};
  payload.put(std::as_bytes(std::span(&head, 1)));
  payload.put(std::as_bytes(std::span(&lengths, 1)));
  payload.put(body);
  return payload.bytes;
}
std::vector<std::byte> one_condition(const std::vector<std::byte>& payload) {
  return GraphDescription().node(0, GraphNodeKind::conditional, {}, std::span(payload)).bytes;
}

}  // namespace

TEST_CASE("conditional nodes that contradict themselves end the session") {
  ConditionFixture f;
  const std::vector<std::byte> body = GraphDescription().node(0, GraphNodeKind::empty).bytes;
  SECTION("too short") { f.describe(GraphDescription().node(0, GraphNodeKind::conditional, {}, std::uint64_t{kHandle}).bytes); }
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
    f.describe(one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, GraphDescription().node(0, GraphNodeKind::empty, {0}).bytes)));
  }
  SECTION("a body with a disabled node: the driver could not disable it") {
    GraphDescription disabled = GraphDescription().node(0, GraphNodeKind::empty);
    reinterpret_cast<GraphNodeHeader*>(disabled.bytes.data())->is_enabled = 0;
    f.describe(one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, disabled.bytes)));
  }
  f.instantiate(1);
  f.check_ended();
}

TEST_CASE("what a wrong program may put into a conditional node is its error") {
  ConditionFixture f;
  const std::vector<std::byte> body = GraphDescription().node(0, GraphNodeKind::empty).bytes;
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
    f.describe(GraphDescription()
                   .node(0, GraphNodeKind::conditional, {}, std::span(first))
                   .node(1, GraphNodeKind::conditional, {}, std::span(second))
                   .bytes);
    f.instantiate(2);
    f.check_refused(CUDA_ERROR_INVALID_VALUE, 2);
  }
  SECTION("an event's record in a body") {
    const proto::EventId event = f.client.add_event(1);
    f.client.turn();
    f.describe(one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, GraphDescription().node(0, GraphNodeKind::event_record, {}, event).bytes)));
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
  f.describe(one_condition(condition(kHandle, CU_GRAPH_COND_TYPE_IF, 1, GraphDescription().node(0, GraphNodeKind::empty).bytes)));
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

}  // namespace mpsshim::test
