// SPDX-License-Identifier: Apache-2.0
// Copies between arrays and linear memory name a client's own memory alone: an end's offsets, its pitch and its size are part of what it names.
// External memory is its session's for as long as it is mapped, at whatever addresses.
#include <type_traits>
#include <utility>

#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/memory/checked_memory.hpp"
#include "proto/references.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

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

constexpr std::uint64_t kChunk = 2u << 20;
constexpr std::uint64_t kWidth = 256;  // of the array: bytes
constexpr std::uint64_t kHeight = 16;
using Space = proto::MemorySpace;

struct Scene {
  WireExecutor executor;
  WireClient client{executor};
  WireClient victim{executor, 2};
  const std::uint64_t own = client.add_chunk(kChunk);
  const std::uint64_t foreign = victim.add_chunk(kChunk);
  const std::uint64_t pinned = kPinnedLease;
  const proto::ArrayId array = client.add_array(1, {kWidth, kHeight, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0});

  Scene() { client.add_segment(proto::SegmentPurpose::pinned, kChunk); }
  ~Scene() { client.release_segments(); }

  // The whole array from, or to, the beginning of linear memory.
  [[nodiscard]] proto::ArrayCopyRecord upload(Space space, std::uint64_t address) const {
    proto::ArrayCopyRecord copy{};
    copy.destination = array.value;
    copy.destination_space = Space::array;
    copy.source = address;
    copy.source_space = space;
    copy.source_pitch = copy.width = kWidth;
    copy.source_rows = copy.height = kHeight;
    copy.depth = 1;
    return copy;
  }
  [[nodiscard]] proto::ArrayCopyRecord download(Space space, std::uint64_t address) const {
    proto::ArrayCopyRecord copy = upload(space, address);
    std::swap(copy.destination, copy.source);
    std::swap(copy.destination_space, copy.source_space);
    std::swap(copy.destination_pitch, copy.source_pitch);
    std::swap(copy.destination_rows, copy.source_rows);
    return copy;
  }

  // Whatever it was answered: nothing has been given to the driver.
  void check_stopped(const proto::ArrayCopyRecord& copy) {
    client.post(copy);
    client.turn();
    CHECK(executor.fake.calls(FakeCall::copy).empty());
    const bool was_told = client.take_async_error() != CUDA_SUCCESS || client.has_failed();
    CHECK(was_told);
  }
};

}  // namespace

TEST_CASE("an array is copied from and to one's own memory") {
  Scene scene;
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
  Scene scene;
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
  Scene scene;
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
  Scene scene;
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
  Scene scene;
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
  Scene scene;
  const broker::CheckedMemory memory = scene.client.session().checked();
  CUDA_RESOURCE_DESC texels{};
  texels.resType = CU_RESOURCE_TYPE_LINEAR;
  texels.res.linear.format = CU_AD_FORMAT_FLOAT;
  texels.res.linear.numChannels = 1;
  const auto result = [&](std::uint64_t address, std::uint64_t bytes) {
    texels.res.linear.devPtr = address;
    texels.res.linear.sizeInBytes = bytes;
    broker::Checked<broker::CheckedResource> checked = memory.resource(texels, {});
    if (!checked) return checked.refusal().result;
    CUsurfObject made = 0;
    (void)broker::CheckedCalls(*scene.executor.driver).make_surface(made, *checked);  // asks the oracle
    return CUDA_SUCCESS;
  };
  CHECK(result(scene.own, kChunk) == CUDA_SUCCESS);
  CHECK(result(scene.pinned, kChunk) == CUDA_SUCCESS);
  CHECK(result(scene.own, kLeaseBytes - (scene.own - kDeviceLease)) == CUDA_SUCCESS);  // as natively: the driver does not ask
  CHECK(result(scene.own, kLeaseBytes - (scene.own - kDeviceLease) + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.own, ~0ull) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.own + kChunk, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.foreign, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.pinned + kLeaseBytes, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(0, 4) == CUDA_ERROR_INVALID_VALUE);

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
  Scene scene;
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
  Scene scene;
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

namespace {

// Two sessions with external memory, which the driver has mapped side by side.
struct ExternalScene : Scene {
  static constexpr std::uint64_t kBytes = 64 << 10;
  const proto::ExternalMemoryId memory = client.add_external(1, kBytes);
  const proto::ExternalMemoryId others = victim.add_external(1, kBytes);
  const std::uint64_t buffer = client.map_external(memory, kBytes);
  const std::uint64_t foreign_buffer = victim.map_external(others, kBytes);

  ExternalScene() { REQUIRE(foreign_buffer == buffer + kBytes); }
  ~ExternalScene() {
    client.release_external();
    victim.release_external();
  }

  CUresult copied(std::uint64_t to, std::uint64_t from, std::uint64_t size_bytes) {
    proto::CopyRecord copy{};
    copy.destination = to;
    copy.source = from;
    copy.size_bytes = size_bytes;
    client.post(copy);
    client.turn();
    const CUresult result = client.take_async_error();
    CHECK(executor.fake.calls(FakeCall::copy).size() == (result == CUDA_SUCCESS ? 1 : 0));
    executor.fake.forget_calls();
    return result;
  }
  CUresult filled(std::uint64_t to, std::uint64_t size_bytes) {
    client.post(proto::FillRecord{to, 0, size_bytes, 1, 7, 1});
    client.turn();
    return client.take_async_error();
  }
};

}  // namespace

TEST_CASE("a buffer of external memory is its session's, to the last byte, and nobody else's") {
  ExternalScene scene;
  constexpr std::uint64_t kBytes = ExternalScene::kBytes;
  CHECK(scene.copied(scene.buffer, scene.own, kBytes) == CUDA_SUCCESS);
  CHECK(scene.copied(scene.own, scene.buffer + kBytes - 1, 1) == CUDA_SUCCESS);
  CHECK(scene.filled(scene.buffer, kBytes) == CUDA_SUCCESS);
  CHECK(scene.copied(scene.own, scene.buffer, kBytes + 1) == CUDA_ERROR_INVALID_VALUE);  // its last byte is the other's
  CHECK(scene.copied(scene.own, scene.foreign_buffer, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(scene.copied(scene.foreign_buffer, scene.own, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(scene.copied(scene.foreign_buffer, scene.buffer, kBytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(scene.filled(scene.foreign_buffer, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(scene.filled(scene.buffer + 1, kBytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(scene.copied(scene.own, scene.buffer, ~0ull) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(scene.client.has_failed());
  const proto::ArrayCopyRecord copy = scene.upload(Space::device, scene.foreign_buffer);
  scene.check_stopped(copy);
}

TEST_CASE("external memory is nobody's once its session has given it up") {
  ExternalScene scene;
  broker::ExternalMemory& external = scene.client.session().memory().external();
  broker::ExternalMemory& others = scene.victim.session().memory().external();
  SECTION("one's own buffer is refused from the end on, before the driver unmaps it") {
    const auto ticket = external.forget(scene.buffer);
    REQUIRE(ticket != 0);
    CHECK(scene.copied(scene.own, scene.buffer, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(external.release(ticket) == CUDA_SUCCESS);
    CHECK(scene.copied(scene.own, scene.buffer, 1) == CUDA_ERROR_INVALID_VALUE);
  }
  SECTION("another's buffer, before the driver unmaps it and after") {
    const auto ticket = others.forget(scene.foreign_buffer);
    REQUIRE(ticket != 0);
    CHECK(scene.copied(scene.own, scene.foreign_buffer, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(others.release(ticket) == CUDA_SUCCESS);
    CHECK(scene.copied(scene.own, scene.foreign_buffer, 1) == CUDA_ERROR_INVALID_VALUE);
  }
  SECTION("memory that is destroyed keeps its buffers, for its session alone") {
    CHECK(external.release(external.retire(scene.memory)) == CUDA_SUCCESS);
    CHECK(others.release(others.retire(scene.others)) == CUDA_SUCCESS);
    CHECK(scene.copied(scene.own, scene.buffer, ExternalScene::kBytes) == CUDA_SUCCESS);
    CHECK(scene.copied(scene.own, scene.foreign_buffer, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK_FALSE(scene.client.session().checked().part(proto::ExternalMapRecord{scene.memory, 0, 1, 0, 0}));
    CHECK(external.release(external.forget(scene.buffer)) == CUDA_SUCCESS);
    CHECK(scene.copied(scene.own, scene.buffer, 1) == CUDA_ERROR_INVALID_VALUE);
  }
  SECTION("the same addresses, mapped by somebody else") {
    CHECK(others.release(others.forget(scene.foreign_buffer)) == CUDA_SUCCESS);
    CHECK(external.release(external.forget(scene.buffer)) == CUDA_SUCCESS);
    REQUIRE(scene.victim.map_external(scene.others, ExternalScene::kBytes) == scene.buffer);
    CHECK(scene.copied(scene.own, scene.buffer, 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(scene.client.map_external(scene.memory, ExternalScene::kBytes) == scene.foreign_buffer);
    CHECK(scene.copied(scene.own, scene.foreign_buffer, ExternalScene::kBytes) == CUDA_SUCCESS);
  }
  SECTION("the other session has ended") {
    scene.victim.release_external();
    CHECK(scene.copied(scene.own, scene.foreign_buffer, 1) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("a buffer lies within what was imported, without overflow, and memory is imported by its own session") {
  ExternalScene scene;
  const broker::CheckedMemory memory = scene.client.session().checked();
  constexpr std::uint64_t kBytes = ExternalScene::kBytes;
  const auto result = [&](proto::ExternalMemoryId of, std::uint64_t offset, std::uint64_t size_bytes) {
    broker::Checked<broker::CheckedExternalBuffer> checked = memory.part(proto::ExternalMapRecord{of, offset, size_bytes, 0, 0});
    if (!checked) return checked.refusal().result;
    std::uint64_t address = 0;
    return scene.client.session().memory().external().map(*checked, address);  // asks the oracle
  };
  CHECK(result(scene.memory, 0, kBytes) == CUDA_SUCCESS);
  CHECK(result(scene.memory, kBytes - 1, 1) == CUDA_SUCCESS);
  CHECK(result(scene.memory, 0, kBytes + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.memory, 1, kBytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.memory, kBytes, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.memory, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.memory, ~0ull, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.memory, 2, ~0ull) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(proto::ExternalMemoryId::make(2, 1), 0, 1) == CUDA_ERROR_INVALID_HANDLE);
  const proto::ExternalMemoryId larger = scene.victim.add_external(3, 2 * kBytes);  // an id that only the other has
  CHECK(result(larger, 0, 1) == CUDA_ERROR_INVALID_HANDLE);

  const broker::ExternalMemory::Request more{kBytes + 1, kBytes, CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, 0};
  const auto import_of = [&](const broker::ExternalMemory::Request& request) {
    return scene.client.session().memory().external().import(proto::ExternalMemoryId::make(4, 1), request,
                                                             proto::create_memory_file("external", kBytes));
  };
  CHECK(import_of(more) == CUDA_ERROR_INVALID_VALUE);
  CHECK(import_of({0, kBytes, CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, 0}) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a mipmapped array of external memory begins in it, and its levels fit") {
  ExternalScene scene;
  const broker::CheckedMemory memory = scene.client.session().checked();
  const auto result = [&](auto change) {
    proto::ExternalMapArrayRecord record{};
    record.memory = scene.memory;
    record.width = record.height = 64;  // levels of 16 KiB, 4 KiB, 1 KiB, ...: 21844 bytes with all seven
    record.format = CU_AD_FORMAT_FLOAT;
    record.channels = record.levels = 1;
    change(record);
    broker::Checked<broker::CheckedExternalArray> checked = memory.part(record);
    if (!checked) return checked.refusal().result;
    CUmipmappedArray made = nullptr;
    return broker::CheckedCalls(*scene.executor.driver).map(made, *checked);  // asks the oracle
  };
  using Record = proto::ExternalMapArrayRecord;
  constexpr std::uint64_t kBytes = ExternalScene::kBytes;
  CHECK(result([](Record&) {}) == CUDA_SUCCESS);
  CHECK(result([](Record& r) { r.offset = kBytes - (16 << 10); }) == CUDA_SUCCESS);
  CHECK(result([](Record& r) { r.offset = kBytes - (16 << 10) + 1; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result([](Record& r) { r.offset = kBytes; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result([](Record& r) { r.offset = ~0ull; }) == CUDA_ERROR_INVALID_VALUE);
  for (const std::uint32_t levels : {7u, 8u, ~0u}) {  // no more than there are
    CHECK(result([&](Record& r) { r.levels = levels, r.offset = kBytes - 21844; }) == CUDA_SUCCESS);
    CHECK(result([&](Record& r) { r.levels = levels, r.offset = kBytes - 21843; }) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(result([](Record& r) { r.levels = 0; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result([](Record& r) { r.depth = 4; }) == CUDA_SUCCESS);
  CHECK(result([](Record& r) { r.depth = 5; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result([](Record& r) { r.depth = 3, r.levels = 2, r.flags = CUDA_ARRAY3D_LAYERED; }) == CUDA_SUCCESS);
  CHECK(result([](Record& r) { r.depth = 4, r.levels = 2, r.flags = CUDA_ARRAY3D_LAYERED; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result([](Record& r) { r.width = ~0ull; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result([](Record& r) { r.width = r.height = r.depth = 1ull << 32; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result([](Record& r) { r.width = (1ull << 62) + 1, r.height = 1; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result([](Record& r) { r.channels = ~0u; }) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result([&](Record& r) { r.memory = proto::ExternalMemoryId::make(2, 1); }) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("texels in external memory end in its buffer") {
  ExternalScene scene;
  const broker::CheckedMemory memory = scene.client.session().checked();
  CUDA_RESOURCE_DESC texels{};
  texels.resType = CU_RESOURCE_TYPE_LINEAR;
  texels.res.linear.format = CU_AD_FORMAT_FLOAT;
  texels.res.linear.numChannels = 1;
  const auto result = [&](std::uint64_t address, std::uint64_t bytes) {
    texels.res.linear.devPtr = address;
    texels.res.linear.sizeInBytes = bytes;
    broker::Checked<broker::CheckedResource> checked = memory.resource(texels, {});
    if (!checked) return checked.refusal().result;
    CUsurfObject made = 0;
    (void)broker::CheckedCalls(*scene.executor.driver).make_surface(made, *checked);  // asks the oracle
    return CUDA_SUCCESS;
  };
  constexpr std::uint64_t kBytes = ExternalScene::kBytes;
  CHECK(result(scene.buffer, kBytes) == CUDA_SUCCESS);
  CHECK(result(scene.buffer, kBytes + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.foreign_buffer, 4) == CUDA_ERROR_INVALID_VALUE);
  (void)scene.client.session().memory().external().forget(scene.buffer);
  CHECK(result(scene.buffer, 4) == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace mpsshim::test
