// SPDX-License-Identifier: Apache-2.0
// A chunk's addresses mean a pinned segment's pages for a while: who asks for it with the wrong ones gets nothing, and nothing is lost on the way.
#include <atomic>
#include <cstring>

#include <sys/mman.h>

#include "broker/executor/memory/memory_map.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr std::uint64_t kChunk = 2 << 20;
constexpr std::uint64_t kPages = 3 * 4096;
constexpr std::uint64_t kSmall = 1, kLarge = 2, kStaging = 3, kOther = 4;  // segments

struct Fixture {
  Fixture() {
    REQUIRE(mmap(reinterpret_cast<void*>(chunk), kChunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) !=
            MAP_FAILED);
    add_segment(kSmall, {proto::SegmentPurpose::pinned, kPinnedLease}, kPages);
    add_segment(kLarge, {proto::SegmentPurpose::pinned, kPinnedLease + kPages}, kChunk + 4096);
    add_segment(kOther, {proto::SegmentPurpose::pinned, kPinnedLease + 2 * kChunk}, kPages);
    executor.fake.oracle.give(add_segment(kStaging, {proto::SegmentPurpose::staging, 0}, kPages), 1);
    executor.start_workers();
    executor.workers->add(client.shared_session());
  }
  // Wherever the chunk is by then.
  ~Fixture() {
    executor.fake.resume_work();
    if (!is_closed) close();
    executor.workers.reset();
    munmap(reinterpret_cast<void*>(chunk), kChunk);
  }

  void close() {
    executor.workers->close(1, [&] { is_closed = true; });
    CHECK(eventually([&] { return is_closed.load(); }));
  }

  std::uint64_t add_segment(std::uint64_t id, const broker::SegmentMap::Place& place, std::uint64_t size_bytes) {
    proto::FileDescriptor file = proto::create_memory_file("segment", size_bytes);
    std::uint64_t address = 0;
    REQUIRE(proto::seal(file, proto::Seal::size));
    REQUIRE(memory.segments().map(id, place, 0, file, address) == CUDA_SUCCESS);
    return address;
  }

  void await(std::uint16_t slot) {
    REQUIRE(eventually([&] { return client.is_answered(slot); }));
  }
  CUresult settle(std::uint64_t address, std::uint64_t segment, bool is_on_host) {
    client.call(proto::ChunkResidenceRecord{address, segment, is_on_host, 0});
    await(0);
    return client.status(0);
  }
  CUresult put_on_host(std::uint64_t address, std::uint64_t segment) { return settle(address, segment, true); }
  CUresult put_on_device(std::uint64_t address) { return settle(address, 0, false); }
  [[nodiscard]] bool is_usable(std::uint64_t bytes) const { return memory.owns_device(chunk, bytes); }
  CUresult posted(const auto& record) {
    client.post(record);
    client.call(proto::MemoryInfoRecord{}, 1);
    await(1);
    return client.take_async_error();
  }

  std::atomic<bool> is_closed{false};
  WireExecutor executor;
  WireClient client{executor};
  broker::MemoryMap& memory = client.session().memory();
  const std::uint64_t chunk = client.add_chunk(kChunk);
};

}  // namespace

TEST_CASE("a chunk becomes a segment's pages and the device's again, and only what is there may be used") {
  Fixture f;
  auto* const shadow = reinterpret_cast<char*>(kPinnedLease);
  std::strcpy(shadow, "of the segment");
  for (int round = 0; round < 3; ++round) {
    REQUIRE(f.put_on_host(f.chunk, kSmall) == CUDA_SUCCESS);
    CHECK(f.is_usable(kPages));
    CHECK_FALSE(f.is_usable(kPages + 1));
    CHECK(std::strcmp(reinterpret_cast<const char*>(f.chunk), "of the segment") == 0);
    reinterpret_cast<char*>(f.chunk)[kPages - 1] = static_cast<char>(round);
    CHECK(shadow[kPages - 1] == round);
    CHECK(f.put_on_host(f.chunk, kSmall) == CUDA_SUCCESS);  // said again by who does not know whether it was heard
    REQUIRE(f.put_on_device(f.chunk) == CUDA_SUCCESS);
    CHECK(f.is_usable(kChunk));
    CHECK(f.put_on_device(f.chunk) == CUDA_SUCCESS);
  }
}

TEST_CASE("a chunk does not become what is not a pinned segment of the session's, or is larger, or lies elsewhere already") {
  Fixture f;
  CHECK(f.put_on_host(f.chunk, 0) == CUDA_SUCCESS);  // what it is
  for (const std::uint64_t segment : {kLarge, kStaging, std::uint64_t{99}, ~std::uint64_t{0}}) {
    CHECK(f.put_on_host(f.chunk, segment) == CUDA_ERROR_INVALID_VALUE);
    CHECK(f.is_usable(kChunk));
  }
  for (const std::uint64_t address : {std::uint64_t{0}, f.chunk + 4096, f.chunk - kChunk, ~std::uint64_t{0}, kPinnedLease}) {
    CHECK(f.put_on_host(address, kSmall) == CUDA_ERROR_INVALID_VALUE);
    CHECK(f.put_on_device(address) == CUDA_ERROR_INVALID_VALUE);
  }
  const std::uint64_t second = f.client.add_chunk(kChunk);
  REQUIRE(f.put_on_host(f.chunk, kSmall) == CUDA_SUCCESS);
  CHECK(f.put_on_host(f.chunk, kOther) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.put_on_host(second, kSmall) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.is_usable(kPages));
  CHECK(f.memory.owns_device(second, kChunk));
  REQUIRE(f.put_on_device(f.chunk) == CUDA_SUCCESS);
  CHECK_FALSE(f.client.has_failed());
}

TEST_CASE("neither the chunk nor the segment ends while one is in the other's place") {
  Fixture f;
  REQUIRE(f.put_on_host(f.chunk, kSmall) == CUDA_SUCCESS);
  CHECK(f.posted(proto::ChunkReleaseRecord{f.chunk}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.posted(proto::SegmentUnmapRecord{kSmall}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.is_usable(kPages));
  REQUIRE(f.put_on_device(f.chunk) == CUDA_SUCCESS);
  CHECK(f.posted(proto::SegmentUnmapRecord{kSmall}) == CUDA_SUCCESS);
  CHECK(f.put_on_host(f.chunk, kSmall) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.posted(proto::ChunkReleaseRecord{f.chunk}) == CUDA_SUCCESS);
  CHECK(f.put_on_host(f.chunk, kOther) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("work under way keeps what it may use, and what comes behind the change does not reach what leaves") {
  Fixture f;
  f.executor.fake.hold_work();
  CHECK(f.posted(proto::FillRecord{f.chunk, 0, 16, 1, 7, 1}) == CUDA_SUCCESS);
  f.client.call(proto::ChunkResidenceRecord{f.chunk, kSmall, true, 0});
  CHECK(f.posted(proto::FillRecord{f.chunk, 0, 16, 1, 7, 1}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.posted(proto::ChunkReleaseRecord{f.chunk}) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(f.client.is_answered(0));
  CHECK_FALSE(f.is_usable(1));
  f.executor.fake.resume_work();
  f.await(0);
  CHECK(f.client.status(0) == CUDA_SUCCESS);
  CHECK(f.is_usable(kPages));
}

TEST_CASE("a session ends while one of its chunks is a segment's pages, and the addresses are kept free no longer") {
  Fixture f;
  REQUIRE(f.put_on_host(f.chunk, kSmall) == CUDA_SUCCESS);
  f.close();
  CHECK_FALSE(f.memory.segments().has_laid());
}

}  // namespace mpsshim::test
