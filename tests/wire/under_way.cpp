// SPDX-License-Identifier: Apache-2.0
// What the progress table says of work that is under way: by it the control process finds out who may have caused a fault, so whatever reads or
// writes clients' memory is noted there before the driver gets it, and nothing else is.
#include "broker/seen_end.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

using broker::WorkKind;

constexpr std::uint64_t kChunk = 2u << 20;

struct Scene {
  WireExecutor executor;
  WireClient client{executor};
  const std::uint64_t own = client.add_chunk(kChunk);

  Scene() { executor.fake.hold_work(); }
  ~Scene() { executor.fake.resume_work(); }

  // The client's NULL stream.
  [[nodiscard]] const broker::StreamProgress& row() const { return executor.progress->stream[0]; }
  [[nodiscard]] bool is_ahead(const std::atomic<std::uint32_t>& position) const { return !broker::progress_reached(row().completed, position); }
  // `post` begins work on memory, and nothing before.
  template <typename Post>
  void check_touches(Post post) {
    CHECK_FALSE(is_ahead(row().touched));
    post();
    client.turn();
    CHECK(client.take_async_error() == CUDA_SUCCESS);
    REQUIRE(row().session == 1);
    CHECK(row().kinds == WorkKind::memory);
    CHECK(is_ahead(row().touched));
    CHECK_FALSE(is_ahead(row().launched));
    client.post_fence(1);  // behind it
    client.turn();
    executor.fake.complete();
    CHECK_FALSE(is_ahead(row().touched));
  }
};

}  // namespace

TEST_CASE("copies, fills and writes of words are work on memory until they have ended") {
  Scene scene;
  SECTION("a copy") {
    scene.check_touches([&] { scene.client.post(proto::CopyRecord{scene.own, scene.own + 4096, 64, {}, {}, {}, 0}); });
  }
  SECTION("a box") {
    proto::CopyBoxRecord box{};
    box.destination = scene.own;
    box.source = scene.own + kChunk / 2;
    box.width = 16;
    box.height = 2;
    box.depth = 1;
    box.destination_pitch = box.source_pitch = 64;
    scene.check_touches([&] { scene.client.post(box); });
  }
  SECTION("a copy into an array") {
    proto::ArrayCopyRecord copy{};
    copy.destination = scene.client.add_array(1, {64, 1, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}).value;
    copy.destination_space = proto::MemorySpace::array;
    copy.source = scene.own;
    copy.source_pitch = copy.width = 64;
    copy.source_rows = copy.height = copy.depth = 1;
    scene.check_touches([&] { scene.client.post(copy); });
  }
  SECTION("a fill") {
    scene.check_touches([&] { scene.client.post(proto::FillRecord{scene.own, 0, 16, 1, 7, 4}); });
  }
  SECTION("a word") {
    scene.check_touches([&] { scene.client.post(proto::StreamWriteValueRecord{scene.own, 1, proto::StreamWrite::value_32, 0}); });
  }
}

TEST_CASE("a look at a word that a stream waits for is work on memory until it has come back") {
  Scene scene;
  scene.client.post(proto::StreamWaitValueRecord{scene.own, 1, 4, CU_STREAM_WAIT_VALUE_EQ});
  scene.client.turn();
  CHECK(scene.row().kinds == WorkKind::memory);
  CHECK(scene.row().probes != scene.row().probe_number);
  scene.executor.fake.complete();
  CHECK(scene.row().probes == scene.row().probe_number);
}

TEST_CASE("fences, events and waits touch nothing") {
  Scene scene;
  const proto::StreamId other = scene.client.add_stream(1, CU_STREAM_NON_BLOCKING);
  const proto::EventId event = scene.client.add_event(1);
  scene.client.post(proto::EventRecordRecord{event, 1, 0}, other);
  scene.client.post(proto::StreamWaitEventRecord{event, 0, 0});
  scene.client.post_fence(1);
  scene.client.turn();
  CHECK(scene.row().issued != scene.row().completed);
  for (const broker::StreamProgress& row : scene.executor.progress->stream) {
    if (row.kinds != 0) FAIL("it counts as work that may fault");
  }
}

TEST_CASE("who has left a stream stays known, with the work it had there and the time") {
  Scene scene;
  FakeFunction function{"f", {8}};
  const proto::FunctionId launched = scene.client.add_function(function);
  const proto::StreamId stream = scene.client.add_stream(1, CU_STREAM_NON_BLOCKING);
  scene.client.post_launch(launched, 1, stream);
  scene.client.post(proto::FillRecord{scene.own, 0, 16, 1, 7, 4}, stream);
  scene.client.turn();
  std::size_t index = 0;
  while (scene.executor.progress->stream[index].kinds == 0) ++index;
  const broker::StreamProgress& row = scene.executor.progress->stream[index];
  CHECK(row.kinds == (WorkKind::kernel | WorkKind::memory));
  CHECK(row.former_session == 0);
  scene.executor.fake.resume_work();
  const broker::ProgressTick before = broker::progress_tick();
  scene.client.post(proto::StreamDestroyRecord{}, stream);
  for (int i = 0; i < 5 && row.session != 0; ++i) scene.client.turn();
  REQUIRE(row.session == 0);
  CHECK(row.former_session == 1);
  CHECK(row.former_kinds == (WorkKind::kernel | WorkKind::memory));
  CHECK(broker::is_not_before(row.former_end, before));
  CHECK(row.kinds == 0);
}

}  // namespace mpsshim::test
