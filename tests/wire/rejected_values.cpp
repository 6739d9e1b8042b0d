// SPDX-License-Identifier: Apache-2.0
// What a correct client can send by a fault of its application is an error of that call, and the session goes on.
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};

  void check_async_error(CUresult expected) {
    client.turn();
    CHECK(client.take_async_error() == expected);
    CHECK_FALSE(client.has_failed());
  }
  std::size_t copies() { return executor.fake.calls(FakeCall::copy).size(); }
};

proto::CopyRecord device_copy(std::uint64_t destination, std::uint64_t source, std::uint64_t size) {
  proto::CopyRecord copy{};
  copy.destination = destination;
  copy.source = source;
  copy.size_bytes = size;
  return copy;
}

constexpr std::uint64_t kChunk = 4u << 20;

}  // namespace

TEST_CASE("handles that are no longer, or never were, are errors of the call") {
  Fixture f;
  SECTION("an unknown stream") { f.client.post_launch(proto::FunctionId::make(0, 1), 0, proto::StreamId::make(9, 1)); }
  SECTION("a stream of another generation") {
    f.client.add_stream(1);
    FakeFunction function{"f", {8}};
    f.client.post_launch(f.client.add_function(function), 0, proto::StreamId::make(1, 2));
  }
  SECTION("an unknown function") { f.client.post_launch(proto::FunctionId::make(5, 1), 0); }
  SECTION("an unknown event") { f.client.post(proto::StreamWaitEventRecord{proto::EventId::make(4, 1), 0, 0}); }
  SECTION("an event that was destroyed") {
    const proto::EventId event = f.client.add_event(1, CU_EVENT_DEFAULT);
    f.client.post(proto::EventDestroyRecord{event});
    f.client.post(proto::StreamWaitEventRecord{event, 0, 0});
  }
  f.check_async_error(CUDA_ERROR_INVALID_HANDLE);
  CHECK(f.executor.fake.calls(FakeCall::launch).empty());
}

TEST_CASE("a fence is written even where its stream or event is missing: the client waits for it") {
  Fixture f;
  f.client.post_fence(3, proto::StreamId::make(9, 1));
  f.client.post(proto::EventRecordRecord{proto::EventId::make(4, 1), 8, 0});
  f.check_async_error(CUDA_ERROR_INVALID_HANDLE);
  CHECK(f.client.fence(9) == 3);
  CHECK(f.client.fence(0) == 8);
}

TEST_CASE("copies reach the driver only inside the session's memory") {
  Fixture f;
  WireClient other(f.executor, 2);
  const std::uint64_t chunk = f.client.add_chunk(kChunk);
  const std::uint64_t last = chunk + kChunk;

  SECTION("the whole chunk is allowed") {
    f.client.post(device_copy(chunk, chunk + kChunk / 2, kChunk / 2));
    f.check_async_error(CUDA_SUCCESS);
    CHECK(f.copies() == 1);
  }
  SECTION("nothing else is") {
    const auto bad =
        GENERATE_COPY(device_copy(chunk - 8, chunk, 16), device_copy(last - 8, chunk, 9), device_copy(chunk, last, 1), device_copy(0, chunk, 8),
                      device_copy(chunk, chunk + 8, ~0ull), device_copy(chunk + 8, chunk, ~0ull - 8), device_copy(~0ull, chunk, 8));
    f.client.post(bad);
    f.check_async_error(CUDA_ERROR_INVALID_VALUE);
    CHECK(f.copies() == 0);
  }
  SECTION("host spaces without such memory") {
    proto::CopyRecord copy = device_copy(chunk, 0, 64);
    copy.source_space = GENERATE(proto::MemorySpace::registered_host, proto::MemorySpace::staging);
    f.client.post(copy);
    f.check_async_error(CUDA_ERROR_INVALID_VALUE);
    CHECK(f.copies() == 0);
  }
  SECTION("a chunk that was released") {
    f.client.post(proto::ChunkReleaseRecord{chunk + 8});
    f.check_async_error(CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("boxes are checked to their last byte on both sides, without overflow") {
  Fixture f;
  const std::uint64_t chunk = f.client.add_chunk(kChunk);
  const auto copy = [&](std::uint64_t destination, std::uint64_t width, std::uint64_t height, std::uint64_t depth, std::uint64_t pitch,
                        std::uint64_t rows) {
    proto::CopyBoxRecord box{};
    box.destination = destination;
    box.source = chunk;
    box.width = width;
    box.height = height;
    box.depth = depth;
    box.destination_pitch = pitch;
    box.destination_rows = rows;
    box.source_pitch = width;
    box.source_rows = height;
    f.client.post(box);
    f.client.turn();
    return f.client.take_async_error();
  };
  CHECK(copy(chunk, 64, kChunk / 4096, 1, 4096, 0) != CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(chunk, 64, kChunk / 4096 + 1, 1, 4096, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(chunk + kChunk - 64, 64, 2, 1, 64, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(chunk, 64, 2, 1, 63, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(chunk, 64, 2, 2, 64, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(chunk, 64, ~0ull, 1, ~0ull, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(chunk, 64, 2, ~0ull, 64, ~0ull) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(chunk, ~0ull, 1, 1, ~0ull, 1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("fills are checked to their last element, without overflow") {
  Fixture f;
  const std::uint64_t chunk = f.client.add_chunk(kChunk);
  const auto fill = [&](std::uint64_t destination, std::uint64_t pitch, std::uint64_t width, std::uint64_t height) {
    f.client.post(proto::FillRecord{destination, pitch, width, height, 1, 4});
    f.client.turn();
    return f.client.take_async_error();
  };
  CHECK(fill(chunk, 0, kChunk / 4, 1) == CUDA_SUCCESS);
  CHECK(fill(chunk, 4096, 1024, kChunk / 4096) == CUDA_SUCCESS);
  CHECK(fill(chunk, 0, kChunk / 4 + 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fill(chunk + 4, 4096, 1024, kChunk / 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fill(chunk, 4095, 1024, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fill(chunk, 0, 1ull << 62, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fill(chunk, 1ull << 62, 1, 5) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.executor.fake.calls(FakeCall::fill).size() == 2);
}

TEST_CASE("launch attributes that carry handles do not reach the driver, windows over whatever memory do") {
  Fixture f;
  FakeFunction function{"f", {8}};
  proto::LaunchRecord launch{};
  launch.function = f.client.add_function(function);
  launch.grid_x = 1;
  launch.parameter_bytes = 8;
  launch.attribute_count = 1;
  struct {
    std::uint64_t parameter = 1;
    CUlaunchAttribute attribute{};
  } trailing;
  const auto post = [&] {
    f.client.post(launch, proto::kNullStream, std::as_bytes(std::span(&trailing, 1)));
    f.client.turn();
    return f.client.take_async_error();
  };
  trailing.attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
  CHECK(post() == CUDA_ERROR_NOT_SUPPORTED);
  trailing.attribute.id = static_cast<CUlaunchAttributeID>(13);  // device-updatable kernel node
  CHECK(post() == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(f.executor.fake.calls(FakeCall::launch).empty());
  trailing.attribute.id = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
  trailing.attribute.value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(0x1000);  // nothing is read there
  trailing.attribute.value.accessPolicyWindow.num_bytes = 64;
  CHECK(post() == CUDA_SUCCESS);
  trailing.attribute = {};
  trailing.attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  CHECK(post() == CUDA_SUCCESS);
  CHECK(f.executor.fake.calls(FakeCall::launch).size() == 2);
}

TEST_CASE("memory is made as it was asked for, and told of where it is the session's") {
  Fixture f;
  const auto status_of = [&](const auto& record) {
    f.client.call(record, 0);
    f.client.turn();
    REQUIRE(f.client.is_answered(0));
    return f.client.status(0);
  };
  const proto::MemoryId memory = proto::MemoryId::make(7, 1);
  CHECK(status_of(proto::MemoryPropertiesRecord{memory}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(status_of(proto::MemoryCreateAsRecord{memory, kChunk, 0x101, 0}) == CUDA_ERROR_INVALID_VALUE);  // would be cut to 1
  CHECK(status_of(proto::MemoryCreateAsRecord{memory, kChunk, CU_MEM_ALLOCATION_COMP_GENERIC, 0}) == CUDA_SUCCESS);
  CHECK(status_of(proto::MemoryPropertiesRecord{memory}) == CUDA_SUCCESS);
  CHECK(f.client.body<proto::MemoryPropertiesReply>(0).compression == CU_MEM_ALLOCATION_COMP_GENERIC);
  CHECK(status_of(proto::MemoryCreateRecord{memory, kChunk}) == CUDA_ERROR_INVALID_VALUE);  // the id is in use
  CHECK(status_of(proto::MemoryPropertiesRecord{proto::MemoryId::make(7, 2)}) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(f.client.has_failed());
}

TEST_CASE("a launch that the driver refuses is lost work: its error comes and stays, and the fence still comes") {
  Fixture f;
  FakeFunction function{"f", {8}};
  const proto::FunctionId id = f.client.add_function(function);
  f.executor.parts->nop_function = nullptr;
  f.executor.fake.launch_result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  f.client.post_launch(id, 0);
  f.client.post(proto::StreamWaitEventRecord{proto::EventId::make(4, 1), 0, 0});
  f.client.post_fence(1);
  f.client.turn();
  CHECK(f.client.take_async_error() != CUDA_SUCCESS);
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
  CHECK(f.client.channel().header().lost_work.load() == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(f.client.fence() == 1);
}

}  // namespace mpsshim::test
