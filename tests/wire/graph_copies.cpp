// SPDX-License-Identifier: Apache-2.0
// Graphs that copy: the memory that their nodes name is the session's when they are launched, and stays for as long.
#include <atomic>

#include "tests/wire/support/graph_fixture.hpp"

namespace mpsshim::test {
namespace {

// An executable graph on real workers, whose one node copies from one chunk to another.
struct CopyFixture : GraphFixture {
  std::uint64_t target = client.add_chunk(2u << 20);
  std::uint64_t source = client.add_chunk(2u << 20);

  CopyFixture() {
    executor.start_workers();
    executor.workers->add(client.shared_session());
    describe(GraphDescription().node(0, GraphNodeKind::copy, {}, copy_between(target, source, 64)).bytes);
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
    GraphDescription changed = GraphDescription().node(0, GraphNodeKind::copy, {}, copy_between(target, from, 64));
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
