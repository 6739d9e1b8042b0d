// SPDX-License-Identifier: Apache-2.0
// Streams that wait for words of host memory, and for records of shared events: held back by the executor's own looks, of which the GPU sees nothing.
#include "proto/shared_events.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr std::uint64_t kSegmentBytes = proto::kSharedEventBytes;

struct Scene {
  WireExecutor executor;
  WireClient client{executor};
  const std::uint64_t chunk = client.add_chunk(2u << 20);
  FakeFunction function{"f", {8}};
  const proto::FunctionId id = client.add_function(function);

  Scene() { client.add_segment(proto::SegmentPurpose::pinned, kSegmentBytes); }
  ~Scene() { client.release_segments(); }

  [[nodiscard]] static proto::SharedEventSlot& slot() { return *reinterpret_cast<proto::SharedEventSlot*>(kPinnedLease); }
  [[nodiscard]] static std::atomic<std::uint32_t>& word(std::uint64_t offset) {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(kPinnedLease + offset);
  }
  void wait_for_record(std::uint32_t number, bool needs_work) {
    client.post(proto::StreamWaitSharedEventRecord{kPinnedLease, number, needs_work ? 1u : 0u});
  }
  // Whether a launch behind the wait has gone out.
  [[nodiscard]] bool is_held() {
    client.turn();
    return executor.fake.calls(FakeCall::launch).empty();
  }
  void launch_behind() { client.post_launch(id, 1); }
};

}  // namespace

TEST_CASE("a stream waits for a word of host memory without the GPU's help") {
  Scene scene;
  scene.client.post(proto::StreamWaitValueRecord{kPinnedLease + 64, 7, 4, CU_STREAM_WAIT_VALUE_EQ});
  scene.launch_behind();
  CHECK(scene.is_held());
  CHECK(scene.executor.fake.calls(FakeCall::copy).empty());
  CHECK(scene.executor.progress->stream[0].kinds == 0);  // it cannot fault
  Scene::word(64).store(6);
  CHECK(scene.is_held());
  Scene::word(64).store(7);
  CHECK_FALSE(scene.is_held());
  CHECK(scene.client.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("all 64 bits of a long word of host memory count") {
  Scene scene;
  scene.client.post(proto::StreamWaitValueRecord{kPinnedLease + 64, 0x1'0000'0002, 8, CU_STREAM_WAIT_VALUE_EQ});
  scene.launch_behind();
  Scene::word(64).store(2);
  CHECK(scene.is_held());
  Scene::word(68).store(1);
  CHECK_FALSE(scene.is_held());
}

TEST_CASE("work in front of a wait may be what changes the word") {
  Scene scene;
  scene.executor.fake.hold_work();
  Scene::word(64).store(7);
  scene.client.post(proto::FillRecord{scene.chunk, 0, 16, 1, 7, 4});
  scene.client.post(proto::StreamWaitValueRecord{kPinnedLease + 64, 7, 4, CU_STREAM_WAIT_VALUE_EQ});
  scene.launch_behind();
  CHECK(scene.is_held());
  Scene::word(64).store(0);  // as if the fill had done it
  scene.executor.fake.resume_work();
  CHECK(scene.is_held());
  Scene::word(64).store(7);
  CHECK_FALSE(scene.is_held());
}

TEST_CASE("a stream waits for a record of a shared event") {
  Scene scene;
  const std::uint32_t number = GENERATE(1u, 17u, 0xffff'fff0u);
  std::atomic<std::uint32_t>& completed = Scene::slot().completed[number % proto::SharedEventSlot::kRecords];
  completed.store(number - proto::SharedEventSlot::kRecords);
  const bool needs_work = GENERATE(true, false);
  scene.wait_for_record(number, needs_work);
  scene.launch_behind();
  CHECK(scene.is_held());
  // A later one has been written there since.
  completed.store(number + GENERATE(0u, proto::SharedEventSlot::kRecords));
  CHECK_FALSE(scene.is_held());
  CHECK(scene.client.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("a stream that waits for a shared event does not wait for its own work") {
  Scene scene;
  scene.executor.fake.hold_work();
  scene.client.post(proto::FillRecord{scene.chunk, 0, 16, 1, 7, 4});
  scene.wait_for_record(1, true);
  scene.launch_behind();
  CHECK(scene.is_held());
  Scene::slot().completed[1].store(1);
  CHECK_FALSE(scene.is_held());
  scene.executor.fake.resume_work();
}

TEST_CASE("an abandoned record lets a stream go on, unless it needs the work") {
  Scene scene;
  const bool needs_work = GENERATE(false, true);
  scene.wait_for_record(5, needs_work);
  scene.launch_behind();
  CHECK(scene.is_held());
  Scene::slot().abandoned[5].store(5);
  Scene::slot().completed[5].store(5);
  CHECK(scene.is_held() == needs_work);
}

TEST_CASE("an event that was never recorded is not waited for, shared or not") {
  Scene scene;
  scene.wait_for_record(0, true);
  scene.launch_behind();
  CHECK_FALSE(scene.is_held());
}

TEST_CASE("what is no shared event of the session's is refused") {
  Scene scene;
  const auto refused = [&](std::uint64_t slot) {
    scene.client.post(proto::StreamWaitSharedEventRecord{slot, 1, 0});
    scene.client.turn();
    return scene.client.take_async_error();
  };
  CHECK(refused(scene.chunk) == CUDA_ERROR_INVALID_VALUE);       // the executor cannot look there
  CHECK(refused(kPinnedLease + 4) == CUDA_ERROR_INVALID_VALUE);  // no slot begins there
  CHECK(refused(kPinnedLease + kSegmentBytes - 64) == CUDA_ERROR_INVALID_VALUE);
  CHECK(refused(kPinnedLease - 64) == CUDA_ERROR_INVALID_VALUE);
  CHECK(refused(0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(refused(reinterpret_cast<std::uint64_t>(scene.executor.progress.get())) == CUDA_ERROR_INVALID_VALUE);
  CHECK(refused(~std::uint64_t{7}) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(scene.client.has_failed());
  scene.launch_behind();
  CHECK_FALSE(scene.is_held());
}

}  // namespace mpsshim::test
