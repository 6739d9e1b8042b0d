// SPDX-License-Identifier: Apache-2.0
// Copies between arrays and linear memory name a client's own memory alone: an end's offsets, its pitch and its size are part of what it names.
// So do textures, references and words.
#include <type_traits>

#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/memory/checked_memory.hpp"
#include "proto/references.hpp"
#include "tests/wire/support/array_scene.hpp"

namespace mpsshim::test {
namespace {

// What a handler could be tempted to write does not compile: a key, a checked type or a call made of numbers.
template <typename... Types>
constexpr bool kCanBeMadeOfNumbers = (... || (std::is_default_constructible_v<Types> || std::is_constructible_v<Types, std::uint64_t> ||
                                              std::is_constructible_v<Types, std::uint64_t, std::uint64_t> ||
                                              std::is_constructible_v<Types, std::uint64_t, std::uint64_t, bool> || std::is_aggregate_v<Types>));
static_assert(!kCanBeMadeOfNumbers<broker::AddressKey, broker::CheckedRange, broker::CheckedCopy, broker::CheckedBox, broker::CheckedBoxCopy,
                                   broker::CheckedArrayCopy, broker::CheckedFill, broker::CheckedWord, broker::CheckedResource,
                                   broker::CheckedExternalBuffer, broker::CheckedExternalArray>);
static_assert(!std::is_constructible_v<broker::OwnWord, std::uint64_t> && !std::is_aggregate_v<broker::OwnWord>);
template <typename Function, typename... Arguments>
constexpr bool kCanBeCalled = std::is_invocable_v<Function, Arguments...>;
using Table = broker::CheckedDriverTable;
static_assert(kCanBeCalled<decltype(Table::cuStreamSynchronize), CUstream>);
static_assert(!kCanBeCalled<decltype(Table::cuMemcpyDtoDAsync_v2), CUdeviceptr, CUdeviceptr, std::size_t, CUstream>);
static_assert(!kCanBeCalled<decltype(Table::cuMemcpy3DAsync_v2), const CUDA_MEMCPY3D*, CUstream>);
static_assert(
    !kCanBeCalled<decltype(Table::cuExternalMemoryGetMappedBuffer), CUdeviceptr*, CUexternalMemory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC*>);
static_assert(!kCanBeCalled<decltype(Table::cuMemFree_v2), CUdeviceptr>);
static_assert(!kCanBeCalled<decltype(Table::cuMemcpyDtoD_v2), CUdeviceptr, CUdeviceptr, std::size_t>);  // of no use to the executor
static_assert(!kCanBeCalled<decltype(Table::cuMemcpyDtoD_v2), broker::AddressKey, CUdeviceptr, CUdeviceptr, std::size_t>);

}  // namespace

TEST_CASE("an array is copied from and to one's own memory") {
  ArrayScene scene;
  for (const proto::ArrayCopyRecord& copy :
       {scene.upload(Space::device, scene.own), scene.download(Space::device, scene.own + kChunk - kWidth * kHeight),
        scene.upload(Space::registered_host, scene.pinned), scene.download(Space::registered_host, scene.pinned)}) {
    scene.client.post(copy);
    scene.client.turn();
    CHECK(scene.client.take_async_error() == CUDA_SUCCESS);
  }
  proto::ArrayCopyRecord within = scene.download(Space::device, scene.own);  // its last row, from array to array
  within.destination = scene.array.value;
  within.destination_space = Space::array;
  within.source_offset[1] = kHeight - 1;
  within.height = 1;
  scene.client.post(within);
  scene.client.turn();
  CHECK(scene.client.take_async_error() == CUDA_SUCCESS);
  CHECK(scene.executor.fake.calls(FakeCall::copy).size() == 5);
}

TEST_CASE("the offsets of an array copy's linear end reach no other memory") {
  ArrayScene scene;
  const std::uint64_t far = scene.foreign - scene.own;
  SECTION("bytes, from another client") {
    proto::ArrayCopyRecord copy = scene.upload(Space::device, scene.own);
    copy.source_offset[0] = far;
    scene.check_stopped(copy);
  }
  SECTION("bytes, to another client") {
    proto::ArrayCopyRecord copy = scene.download(Space::device, scene.own);
    copy.destination_offset[0] = far;
    scene.check_stopped(copy);
  }
  SECTION("rows") {
    proto::ArrayCopyRecord copy = scene.download(Space::device, scene.own);
    copy.destination_offset[1] = far / kWidth;
    scene.check_stopped(copy);
  }
  SECTION("slices") {
    proto::ArrayCopyRecord copy = scene.upload(Space::device, scene.own);
    copy.source_offset[2] = far / kWidth / kHeight;
    scene.check_stopped(copy);
  }
  SECTION("the executor's own memory, from pinned memory on") {
    const auto executors = reinterpret_cast<std::uint64_t>(scene.executor.progress.get());
    proto::ArrayCopyRecord copy = scene.download(Space::registered_host, scene.pinned);
    copy.destination_offset[0] = executors - scene.pinned;
    scene.check_stopped(copy);
  }
  SECTION("a single row, whose pitch is nothing") {
    proto::ArrayCopyRecord copy = scene.download(Space::device, scene.own);
    copy.height = 1;
    copy.destination_pitch = far;
    copy.destination_offset[1] = 1;
    scene.check_stopped(copy);
  }
}

TEST_CASE("an array copy has an array at one end at least") {
  ArrayScene scene;
  proto::ArrayCopyRecord copy = scene.upload(Space::device, scene.own);
  copy.destination = scene.own;
  copy.destination_space = Space::device;
  copy.destination_pitch = kWidth;
  copy.destination_rows = kHeight;
  SECTION("as it is") {}
  SECTION("to another client") { copy.destination_offset[0] = scene.foreign - scene.own; }
  SECTION("to the executor's own memory") {
    copy.destination = scene.pinned;
    copy.destination_space = Space::registered_host;
    copy.destination_offset[0] = reinterpret_cast<std::uint64_t>(scene.executor.progress.get()) - scene.pinned;
  }
  scene.check_stopped(copy);
}

TEST_CASE("an array copy's linear end is checked to its last byte, without overflow") {
  ArrayScene scene;
  proto::ArrayCopyRecord copy = scene.download(Space::device, scene.own);
  SECTION("one byte too late") { copy.destination += kChunk - kWidth * kHeight + 1; }
  SECTION("another client's") { copy.destination = scene.foreign; }
  SECTION("rows that lie further apart than the memory is long") { copy.destination_pitch = kChunk; }
  SECTION("rows that lie upon each other") { copy.destination_pitch = kWidth - 1; }
  SECTION("rows around the end of all addresses") { copy.destination_pitch = ~0ull / kHeight + 2; }
  SECTION("slices that lie upon each other") {
    copy.depth = 2;
    copy.destination_rows = kHeight - 1;
  }
  SECTION("slices without a pitch, which the driver might give them") {
    copy.height = 1;
    copy.depth = kChunk;
    copy.destination_pitch = 0;
    copy.destination_rows = 1;
  }
  SECTION("a width around the end of all addresses") { copy.width = ~0ull; }
  scene.check_stopped(copy);
}

TEST_CASE("an array copy stays within its array") {
  ArrayScene scene;
  proto::ArrayCopyRecord copy = scene.upload(Space::device, scene.own);
  SECTION("bytes") { copy.destination_offset[0] = 1; }
  SECTION("rows") { copy.destination_offset[1] = 1; }
  SECTION("slices") { copy.destination_offset[2] = 1; }
  SECTION("around the end of all numbers") { copy.destination_offset[0] = ~0ull; }
  SECTION("rows around it") { copy.destination_offset[1] = ~0ull; }
  SECTION("wider") {
    copy.width = copy.source_pitch = kWidth + 1;
    copy.height = 1;
  }
  SECTION("an array that is not the session's") { copy.destination = proto::ArrayId::make(2, 1).value; }
  scene.check_stopped(copy);
}

TEST_CASE("linear memory of a texture begins in one's own and ends in one's lease") {
  ArrayScene scene;
  const broker::CheckedMemory memory = scene.client.session().checked();
  const auto result = [&](std::uint64_t address, std::uint64_t bytes) { return read_texels(scene.executor, scene.client, address, bytes); };
  CHECK(result(scene.own, kChunk) == CUDA_SUCCESS);
  CHECK(result(scene.pinned, kChunk) == CUDA_SUCCESS);
  CHECK(result(scene.own, kLeaseBytes - (scene.own - kDeviceLease)) == CUDA_SUCCESS);  // as natively: the driver does not ask
  CHECK(result(scene.own, kLeaseBytes - (scene.own - kDeviceLease) + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.own, ~0ull) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.own + kChunk, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.foreign, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.pinned + kLeaseBytes, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(0, 4) == CUDA_ERROR_INVALID_VALUE);

  CUDA_RESOURCE_DESC texels{};
  texels.resType = CU_RESOURCE_TYPE_PITCH2D;
  texels.res.pitch2D = {scene.own, CU_AD_FORMAT_FLOAT, 4, 64, 64, 1024};
  CHECK(memory.resource(texels, {}));
  texels.res.pitch2D.pitchInBytes = kLeaseBytes;
  CHECK_FALSE(memory.resource(texels, {}));
  texels.res.pitch2D.pitchInBytes = ~0ull / 32;
  CHECK_FALSE(memory.resource(texels, {}));
  texels.res.pitch2D.pitchInBytes = 1024;
  texels.res.pitch2D.width = ~0ull / 8;
  CHECK_FALSE(memory.resource(texels, {}));
}

TEST_CASE("what a texture reference is bound to is one's own to the last texel") {
  ArrayScene scene;
  const broker::CheckedMemory memory = scene.client.session().checked();
  const auto result = [&](proto::ReferenceSource source, std::uint64_t address, std::uint64_t size_or_pitch, std::uint64_t width,
                          std::uint64_t height) {
    proto::ReferenceSetRecord record{};
    record.source = source;
    record.address = address;
    record.size_bytes = size_or_pitch;
    record.width = width;
    record.height = height;
    record.format = CU_AD_FORMAT_FLOAT;
    record.channels = 1;
    broker::Checked<broker::CheckedBinding> checked = memory.binding(record, false);
    if (!checked) return checked.refusal().result;
    (void)broker::CheckedCalls(*scene.executor.driver).bind(nullptr, *checked);  // asks the oracle
    return CUDA_SUCCESS;
  };
  using enum proto::ReferenceSource;
  CHECK(result(linear, scene.own, kChunk, 0, 0) == CUDA_SUCCESS);
  CHECK(result(linear, scene.own, kChunk + 1, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(linear, scene.foreign, 4, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(rows, scene.own, kChunk / 16, kChunk / 64, 16) == CUDA_SUCCESS);
  CHECK(result(rows, scene.own + 4, kChunk / 16, kChunk / 64, 16) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(rows, scene.own, 4096, kChunk / 4, 2) == CUDA_ERROR_INVALID_VALUE);  // a row that is longer than its pitch
  CHECK(result(rows, scene.own, ~0ull, 1, 3) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(rows, scene.own, 4, ~0ull, 1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("words that a stream writes or waits for are one's own") {
  ArrayScene scene;
  const auto written = [&](std::uint64_t address, proto::StreamWrite operation) {
    scene.client.post(proto::StreamWriteValueRecord{address, 1, operation, 0});
    scene.client.turn();
    return scene.client.take_async_error();
  };
  CHECK(written(scene.own + kChunk - 8, proto::StreamWrite::value_64) == CUDA_SUCCESS);
  CHECK(written(scene.pinned, proto::StreamWrite::value_32) == CUDA_SUCCESS);
  CHECK(written(0, proto::StreamWrite::remote_flush) == CUDA_SUCCESS);
  CHECK(written(scene.own + kChunk - 4, proto::StreamWrite::value_64) == CUDA_ERROR_INVALID_VALUE);
  CHECK(written(scene.own + 2, proto::StreamWrite::value_32) == CUDA_ERROR_INVALID_VALUE);
  CHECK(written(scene.foreign, proto::StreamWrite::value_32) == CUDA_ERROR_INVALID_VALUE);
  CHECK(written(reinterpret_cast<std::uint64_t>(scene.executor.progress.get()), proto::StreamWrite::value_32) == CUDA_ERROR_INVALID_VALUE);
  scene.client.post(proto::StreamWaitValueRecord{scene.foreign, 0, 4, CU_STREAM_WAIT_VALUE_GEQ});
  scene.client.turn();
  CHECK(scene.client.take_async_error() == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(scene.client.has_failed());
}

}  // namespace mpsshim::test
