// SPDX-License-Identifier: Apache-2.0
// Arrays, levels and textures: the driver's array ends after whatever uses it, in whatever order the client destroys them, and jobs of helpers that
// were given it before use it too.
#include <atomic>

#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr auto kArray = proto::ArrayId::make(1, 1);
constexpr auto kLevel = proto::ArrayId::make(2, 1);
using proto::ArrayKind;
using proto::ArrayObject;

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  FakeDriver& fake = executor.fake;
  std::atomic<bool> may_go_on{true};

  Fixture() {
    executor.start_workers();
    executor.workers->add(client.shared_session());
  }
  // Nothing of it is left in the driver, and nothing was used after its end.
  ~Fixture() {
    may_go_on = true;
    fake.resume_work();
    std::atomic<bool> is_closed{false};
    executor.workers->close(1, [&] { is_closed = true; });
    CHECK(eventually([&] { return is_closed.load(); }));
    executor.workers.reset();
    CHECK(fake.arrays == 0);
    CHECK(fake.textures == 0);
    CHECK(fake.dead_uses == 0);
  }
  void await(std::uint16_t slot) {
    REQUIRE(eventually([&] { return client.is_answered(slot); }));
  }
  // Jobs of this session are begun from now on when it says so.
  void hold_helpers() {
    may_go_on = false;
    executor.helpers->submit(1, [this] {
      while (!may_go_on) usleep(1'000);
    });
  }
  void ask_array(ArrayKind kind, proto::ArrayId id, std::uint16_t slot, proto::ArrayId parent = {}) {
    proto::ArrayCreateRecord record{};
    record.array = id;
    record.parent = parent;
    record.kind = kind;
    record.width = 16;
    record.channels = 1;
    client.call(record, slot);
  }
  void make_array(ArrayKind kind, proto::ArrayId id = kArray, proto::ArrayId parent = {}) {
    ask_array(kind, id, 0, parent);
    await(0);
    REQUIRE(client.status(0) == CUDA_SUCCESS);
  }
  void ask_texture(CUresourcetype type, std::uint16_t slot, std::uint64_t address = 0) {
    proto::SamplerCreateRecord record{};
    record.array = kArray;
    struct {
      CUDA_RESOURCE_DESC resource{};
      CUDA_TEXTURE_DESC texture{};
    } trailing;
    trailing.resource.resType = type;
    if (address != 0) {
      trailing.resource.res.linear = {address, CU_AD_FORMAT_FLOAT, 1, 64};
    }
    client.call(record, slot, std::as_bytes(std::span(&trailing, 1)));
  }
  void destroy(ArrayObject kind, std::uint64_t object) {
    proto::ArrayObjectDestroyRecord record{};
    record.kind = kind;
    record.object = object;
    client.post(record);
  }
  // Long enough for a window, had one been asked for.
  static void let_windows_pass() { usleep(100'000); }
};

}  // namespace

TEST_CASE("an array that is destroyed while a texture of it is being made ends after the texture") {
  Fixture f;
  const bool is_mipmapped = GENERATE(false, true);
  f.make_array(is_mipmapped ? ArrayKind::mipmapped : ArrayKind::array);
  f.hold_helpers();
  f.ask_texture(is_mipmapped ? CU_RESOURCE_TYPE_MIPMAPPED_ARRAY : CU_RESOURCE_TYPE_ARRAY, 1);
  f.destroy(ArrayObject::array, kArray.value);
  Fixture::let_windows_pass();
  CHECK(f.fake.arrays == 1);
  f.may_go_on = true;
  f.await(1);
  REQUIRE(f.client.status(1) == CUDA_SUCCESS);
  Fixture::let_windows_pass();
  CHECK(f.fake.arrays == 1);
  f.destroy(ArrayObject::texture, f.client.body<proto::SamplerCreateReply>(1).handle);
  CHECK(eventually([&] { return f.fake.textures == 0 && f.fake.arrays == 0; }));
  CHECK(f.client.take_async_error() == CUDA_SUCCESS);
}

TEST_CASE("a level that is wanted of an array destroyed meanwhile is refused, and the array ends then") {
  Fixture f;
  f.make_array(ArrayKind::mipmapped);
  f.hold_helpers();
  f.ask_array(ArrayKind::level, kLevel, 1, kArray);
  f.destroy(ArrayObject::array, kArray.value);
  SECTION("for good") {}
  SECTION("and made anew under its id") { f.ask_array(ArrayKind::mipmapped, kArray, 2); }
  Fixture::let_windows_pass();
  CHECK(f.fake.arrays == 1);
  f.may_go_on = true;
  f.await(1);
  CHECK(f.client.status(1) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(eventually([&] { return f.fake.arrays == (f.client.session().arrays().holds_any() ? 1u : 0u); }));
}

TEST_CASE("a level is not of the array that has its parent's id by the time it is there") {
  Fixture f;
  f.make_array(ArrayKind::mipmapped);
  f.hold_helpers();
  f.ask_array(ArrayKind::mipmapped, kArray, 2);  // made before the level is, when the id is free
  f.ask_array(ArrayKind::level, kLevel, 1, kArray);
  f.destroy(ArrayObject::array, kArray.value);
  Fixture::let_windows_pass();
  f.may_go_on = true;
  f.await(1);
  CHECK(f.client.status(2) == CUDA_SUCCESS);
  CHECK(f.client.status(1) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(eventually([&] { return f.fake.arrays == 1; }));
}

TEST_CASE("memory that is given up while a helper is to make a texture of it ends after that call") {
  Fixture f;
  f.client.add_segment(proto::SegmentPurpose::pinned, 4096);
  f.hold_helpers();
  f.ask_texture(CU_RESOURCE_TYPE_LINEAR, 1, kPinnedLease);
  f.client.post(proto::SegmentUnmapRecord{1});  // in a window, which waits for no helper
  Fixture::let_windows_pass();
  CHECK(f.fake.oracle.registered_bytes(kPinnedLease) != 0);
  f.may_go_on = true;
  f.await(1);
  CHECK(f.client.status(1) == CUDA_SUCCESS);
  CHECK(eventually([&] { return f.fake.oracle.registered_bytes(kPinnedLease) == 0; }));
}

TEST_CASE("an array outlives the work that was queued when it was destroyed, and goes with its levels") {
  Fixture f;
  f.make_array(ArrayKind::mipmapped);
  f.make_array(ArrayKind::level, kLevel, kArray);
  FakeFunction function{"f", {8}};
  f.fake.hold_work();
  const std::uint64_t chunk = f.client.add_chunk(2u << 20);
  f.client.post(proto::FillRecord{chunk, 0, 16, 1, 1, 4});
  f.destroy(ArrayObject::array, kArray.value);
  f.destroy(ArrayObject::array, kLevel.value);
  CHECK(eventually([&] { return f.client.take_async_error() == CUDA_ERROR_INVALID_HANDLE; }));  // it went with its parent
  Fixture::let_windows_pass();
  CHECK(f.fake.arrays == 1);
  f.fake.resume_work();
  CHECK(eventually([&] { return f.fake.arrays == 0; }));
}

TEST_CASE("an array with a plane of a level ends when the work queued before has, and not with its session") {
  Fixture f;
  constexpr auto kPlane = proto::ArrayId::make(3, 1);
  constexpr auto kOther = proto::ArrayId::make(4, 1);
  f.make_array(ArrayKind::mipmapped);
  f.make_array(ArrayKind::level, kLevel, kArray);
  f.make_array(ArrayKind::plane, kPlane, kLevel);
  f.make_array(ArrayKind::plane, kOther, kLevel);
  f.fake.hold_work();
  const std::uint64_t chunk = f.client.add_chunk(2u << 20);
  f.client.post(proto::FillRecord{chunk, 0, 16, 1, 1, 4});
  f.destroy(ArrayObject::array, kArray.value);
  Fixture::let_windows_pass();
  CHECK(f.fake.arrays == 1);
  f.fake.resume_work();
  CHECK(eventually([&] { return f.fake.arrays == 0; }));
  f.destroy(ArrayObject::array, kPlane.value);
  CHECK(eventually([&] { return f.client.take_async_error() == CUDA_ERROR_INVALID_HANDLE; }));  // it went with them
}

TEST_CASE("on a full device an array waits for those that were destroyed before, and for nothing else") {
  Fixture f;
  constexpr auto kNext = proto::ArrayId::make(5, 1);
  f.make_array(ArrayKind::array);
  f.fake.most_arrays = 1;
  f.ask_array(ArrayKind::array, kNext, 1);
  f.await(1);
  CHECK(f.client.status(1) == CUDA_ERROR_OUT_OF_MEMORY);
  f.fake.hold_work();
  const std::uint64_t chunk = f.client.add_chunk(2u << 20);
  f.client.post(proto::FillRecord{chunk, 0, 16, 1, 1, 4});
  f.destroy(ArrayObject::array, kArray.value);
  f.ask_array(ArrayKind::array, kNext, 2);
  Fixture::let_windows_pass();
  CHECK_FALSE(f.client.is_answered(2));
  f.fake.resume_work();
  f.await(2);
  CHECK(f.client.status(2) == CUDA_SUCCESS);
}

TEST_CASE("a session that ends with arrays, textures and jobs under way leaves nothing in the driver") {
  Fixture f;
  f.make_array(ArrayKind::mipmapped);
  f.make_array(ArrayKind::level, kLevel, kArray);
  f.ask_texture(CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, 1);
  f.await(1);
  f.hold_helpers();
  f.ask_texture(CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, 2);
  f.ask_array(ArrayKind::level, proto::ArrayId::make(3, 1), 3, kArray);
  f.destroy(ArrayObject::array, kArray.value);
  Fixture::let_windows_pass();
}

}  // namespace mpsshim::test
