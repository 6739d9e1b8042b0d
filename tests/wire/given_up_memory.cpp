// SPDX-License-Identifier: Apache-2.0
// Memory that is given up is unmapped later, by a helper that may be late: what lies at the same address by then is left alone.
#include "broker/executor/memory/application_memory.hpp"
#include "broker/executor/memory/memory_map.hpp"
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

constexpr std::uint64_t kBytes = 2 << 20;

struct Fixture {
  Fixture() {
    REQUIRE(memory.reserve_range(kBytes, kBytes, 0, address) == CUDA_SUCCESS);
    REQUIRE(pieces.create(piece, kBytes) == CUDA_SUCCESS);
  }

  WireExecutor executor;
  WireClient client{executor};
  broker::MemoryMap& memory = client.session().memory();
  broker::ApplicationMemory& pieces = memory.application();
  const proto::MemoryId piece = proto::MemoryId::make(1, 1);
  std::uint64_t address = 0;
};

}  // namespace

TEST_CASE("a mapping that came later is not unmapped by a helper that is late, even if it has been given up as well") {
  Fixture f;
  REQUIRE(f.pieces.map(f.address, kBytes, f.piece, true) == CUDA_SUCCESS);
  REQUIRE(f.pieces.forget(f.address));
  const std::uint64_t first = f.memory.last_given_up();
  f.pieces.unmap_forgotten(f.address, kBytes, first);  // by the helper that maps anew
  CHECK_FALSE(f.pieces.has_forgotten(f.address, kBytes));
  REQUIRE(f.pieces.map(f.address, kBytes, f.piece, true) == CUDA_SUCCESS);
  REQUIRE(f.pieces.forget(f.address));  // its work is under way
  f.pieces.unmap_forgotten(f.address, 1, first);
  CHECK(f.pieces.has_forgotten(f.address, kBytes));
  f.pieces.unmap_forgotten(f.address, 1, f.memory.last_given_up());
  CHECK_FALSE(f.pieces.has_forgotten(f.address, kBytes));
}

TEST_CASE("what was allowed again is not forbidden by a helper that is late, nor what was forbidden anew since") {
  Fixture f;
  REQUIRE(f.pieces.map(f.address, kBytes, f.piece, true) == CUDA_SUCCESS);
  CHECK(f.memory.owns_device(f.address, kBytes));
  REQUIRE(f.pieces.forbid(f.address, kBytes));
  CHECK_FALSE(f.memory.owns_device(f.address, kBytes));
  const std::uint64_t first = f.memory.last_given_up();
  REQUIRE(f.pieces.allow(f.address, kBytes));
  CHECK_FALSE(f.memory.owns_device(f.address, kBytes));  // the driver does not know yet
  REQUIRE(f.pieces.set_access(f.address, kBytes, first) == CUDA_SUCCESS);
  CHECK(f.memory.owns_device(f.address, kBytes));
  const std::size_t calls = f.executor.fake.access_changes;
  REQUIRE(f.pieces.forbid(f.address, kBytes));  // its work is under way
  REQUIRE(f.pieces.set_access(f.address, kBytes, first) == CUDA_SUCCESS);
  CHECK(f.executor.fake.access_changes == calls);
  REQUIRE(f.pieces.set_access(f.address, kBytes, f.memory.last_given_up()) == CUDA_SUCCESS);
  CHECK(f.executor.fake.access_changes == calls + 1);
  CHECK_FALSE(f.memory.owns_device(f.address, kBytes));
}

TEST_CASE("a range that is given up while another's end is awaited stays") {
  Fixture f;
  REQUIRE(f.memory.leave_range(f.address, kBytes));
  f.memory.release_ranges(0, UINT64_MAX, f.memory.last_given_up() - 1);
  std::uint64_t next = 0;
  REQUIRE(f.memory.reserve_range(kBytes, kBytes, f.address, next) == CUDA_SUCCESS);
  CHECK(next != f.address);
  f.memory.release_ranges(0, UINT64_MAX, f.memory.last_given_up());
  REQUIRE(f.memory.reserve_range(kBytes, kBytes, f.address, next) == CUDA_SUCCESS);
  CHECK(next == f.address);
}

TEST_CASE("a full device takes back the chunks that were given up by then, no later ones") {
  Fixture f;
  const std::uint64_t first = f.client.add_chunk(kBytes);
  const std::uint64_t second = f.client.add_chunk(kBytes);
  REQUIRE(f.memory.forget_chunk(first));
  const std::uint64_t up_to = f.memory.last_given_up();
  REQUIRE(f.memory.forget_chunk(second));
  CHECK(f.memory.release_leaving(up_to));
  CHECK(f.memory.is_releasing());  // the second
  f.memory.release_chunk(second, up_to);
  CHECK(f.memory.is_releasing());
  f.memory.release_chunk(second, f.memory.last_given_up());
  CHECK_FALSE(f.memory.is_releasing());
}

}  // namespace mpsshim::test
