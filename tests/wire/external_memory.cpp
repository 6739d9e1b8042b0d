// SPDX-License-Identifier: Apache-2.0
// External memory is its session's for as long as it is mapped, at whatever addresses.
#include "tests/wire/support/array_scene.hpp"

namespace mpsshim::test {
namespace {

// Two sessions with external memory, which the driver has mapped side by side.
struct ExternalScene : ArrayScene {
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
  const auto result = [&](std::uint64_t address, std::uint64_t bytes) { return read_texels(scene.executor, scene.client, address, bytes); };
  constexpr std::uint64_t kBytes = ExternalScene::kBytes;
  CHECK(result(scene.buffer, kBytes) == CUDA_SUCCESS);
  CHECK(result(scene.buffer, kBytes + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(scene.foreign_buffer, 4) == CUDA_ERROR_INVALID_VALUE);
  (void)scene.client.session().memory().external().forget(scene.buffer);
  CHECK(result(scene.buffer, 4) == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace mpsshim::test
